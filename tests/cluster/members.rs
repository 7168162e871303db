//! Members that come and go under load, through the tool; and what is refused.

use crate::bed::{Bed, PATIENCE, until};
use crate::tool::{code, text, tool};
use crate::writers::Callers;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::Output;
use std::time::Duration;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_protocol::ids::NodeId;

const NONE: [String; 0] = [];

/// `tiedkv member ...`, away from the threads of the test's runtime.
async fn member(cluster: &LocalCluster, rest: &[&str]) -> Output {
    let url = cluster.url();
    let rest: Vec<String> = rest.iter().map(|&word| word.to_owned()).collect();
    let run = move || {
        let mut arguments = vec!["member", "--cluster", &url];
        arguments.extend(rest.iter().map(String::as_str));
        tool(&arguments, b"")
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

async fn done(cluster: &LocalCluster, rest: &[&str]) {
    let output = member(cluster, rest).await;
    assert_eq!((code(&output), text(&output.stdout)), (Some(0), "done\n".to_owned()), "{rest:?}: {output:?}");
}

/// Role of each member by the tool's list.
async fn list(cluster: &LocalCluster) -> Vec<(u64, String)> {
    let output = member(cluster, &["list"]).await;
    assert_eq!(code(&output), Some(0), "{output:?}");
    let text = text(&output.stdout);
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[1].parse().unwrap(), words[2].to_owned())
    };
    text.lines().map(line).collect()
}

async fn until_list(cluster: &LocalCluster, what: &str, wanted: impl Fn(&Vec<(u64, String)>) -> bool) {
    until(what, async || list(cluster).await, wanted).await;
}

fn address(bed: &Bed, node: NodeId) -> String {
    bed.cluster.nodes().iter().find(|local| local.id() == node).unwrap().ports().client().to_string()
}

#[tokio::test]
async fn a_member_learns_first_then_votes_and_goes_again_under_load() {
    let mut bed = Bed::replicated().await;
    let callers = Callers::start(&bed.client, 3, 2, None);
    callers.go_on(100).await;
    let fourth = bed.cluster.add_node().unwrap();
    let place = address(&bed, fourth);
    // It hangs, so it cannot catch up: a learner meanwhile.
    bed.cluster.pause(fourth).unwrap();
    let add = ["add", "--node", "4", "--address", &place];
    let (added, ()) = tokio::join!(member(&bed.cluster, &add), async {
        let learns = |list: &Vec<(u64, String)>| list.contains(&(4, "learner".to_owned()));
        until_list(&bed.cluster, "the fourth learns", learns).await;
        callers.go_on(100).await;
        let pid = bed.cluster.nodes()[3].pid().and_then(|pid| i32::try_from(pid).ok()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    });
    assert_eq!((code(&added), text(&added.stdout)), (Some(0), "done\n".to_owned()), "{added:?}");
    until_list(&bed.cluster, "the fourth votes", |list| list.contains(&(4, "member".to_owned()))).await;
    done(&bed.cluster, &add).await;
    bed.cluster.wait_ready().await.unwrap();
    bed.client.all_connected(PATIENCE).await.unwrap();
    assert_eq!(bed.client.topology().members.len(), 4, "clients learn of it");
    let last = bed.client.put("seen by", "all four").await.unwrap().token.position;
    bed.until_applied(&[fourth], last).await;
    done(&bed.cluster, &["remove", "--node", "4"]).await;
    done(&bed.cluster, &["remove", "--node", "4"]).await;
    until_list(&bed.cluster, "three are left", |list| list.len() == 3).await;
    // It is told, says so, and ends; its id is used up.
    let status = bed.cluster.wait_stopped(fourth, PATIENCE).await.unwrap();
    let said = std::fs::read_to_string(bed.cluster.nodes()[3].log()).unwrap();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("this node cannot go on") && said.contains("removed from the cluster"), "{said}");
    let again = member(&bed.cluster, &add).await;
    assert!(text(&again.stderr).contains("an id is used once"), "{again:?}");
    callers.go_on(100).await;
    let seen = callers.end().await;
    assert_eq!(seen.failed, NONE);
    seen.hold_against(&bed).await;
}

#[tokio::test]
async fn a_dead_node_is_replaced_and_quorum_is_never_given_away() {
    let mut bed = Bed::replicated().await;
    let [dead, other] = bed.followers().await[..] else { panic!("two followers") };
    bed.cluster.kill(dead);
    let without_other = ["remove", "--node", &other.0.to_string()];
    // A voter counts as alive until it was silent for a second.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let refused = member(&bed.cluster, &without_other).await;
    assert_ne!(code(&refused), Some(0));
    let said = text(&refused.stderr);
    assert!(said.contains("quorum") && said.contains("add one first"), "{said}");
    // As the operator's guide says: the new one first, under a new id, then the dead one goes.
    let callers = Callers::start(&bed.client, 3, 1, None);
    let fresh = bed.cluster.add_node().unwrap();
    done(&bed.cluster, &["add", "--node", &fresh.0.to_string(), "--address", &address(&bed, fresh)]).await;
    done(&bed.cluster, &["remove", "--node", &dead.0.to_string()]).await;
    callers.go_on(100).await;
    let seen = callers.end().await;
    assert_eq!(seen.failed, NONE);
    let last = bed.client.put("on", "three again").await.unwrap().token.position;
    bed.until_applied(&[fresh], last).await;
    // And so one more may die.
    bed.cluster.kill(other);
    seen.hold_against(&bed).await;
}

#[tokio::test]
async fn five_become_three_the_leader_first() {
    let mut bed = Bed::replicated_with(5, |_| {}).await;
    let callers = Callers::start(&bed.client, 3, 2, None);
    callers.go_on(100).await;
    let leader = bed.leader().await;
    done(&bed.cluster, &["remove", "--node", &leader.0.to_string()]).await;
    callers.go_on(100).await;
    let next =
        until("another leads", async || bed.client.topology().leader.filter(|now| *now != leader), Option::is_some)
            .await
            .unwrap();
    let second = bed.nodes().into_iter().find(|node| *node != leader && *node != next).unwrap();
    done(&bed.cluster, &["remove", "--node", &second.0.to_string()]).await;
    until_list(&bed.cluster, "three are left", |list| list.len() == 3).await;
    for removed in [leader, second] {
        bed.cluster.wait_stopped(removed, PATIENCE).await.unwrap();
    }
    callers.go_on(200).await;
    let seen = callers.end().await;
    assert_eq!(seen.failed, NONE);
    seen.hold_against(&bed).await;
}

#[tokio::test]
async fn three_nodes_work_over_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("no IPv6 on this machine: not tried");
        return;
    }
    let mut spec = ClusterSpec::of(env!("CARGO_BIN_EXE_tiedkv"));
    spec.settings.device = Device::Real;
    spec.settings.storage = Storage::Disk;
    spec.host = Ipv6Addr::LOCALHOST.into();
    let bed = Bed::of(spec).await;
    let url = bed.cluster.url();
    assert!(url.starts_with("tiedkv://[::1]:"), "{url}");
    let run = async |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let run = move || tool(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), b"");
        tokio::task::spawn_blocking(run).await.unwrap()
    };
    let put = run(&["put", "--cluster", &url, "greeting", "hello"]).await;
    assert_eq!(code(&put), Some(0), "{put:?}");
    let linearizable = format!("{url}&read=linearizable");
    for url in [&url, &linearizable] {
        let got = run(&["get", "--cluster", url, "greeting"]).await;
        assert_eq!((code(&got), text(&got.stdout)), (Some(0), "hello".to_owned()), "{got:?}");
    }
    let members = list(&bed.cluster).await;
    assert_eq!(members.len(), 3);
    assert_eq!(members.iter().filter(|(_, role)| role == "leader").count(), 1);
}
