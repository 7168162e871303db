//! Layers win in order; whatever is wrong names value, source and, where it can, the right name.

use super::*;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;

fn text(text: &str) -> Result<Config, String> {
    ConfigBuilder::new()
        .file_text(Path::new("tiedkv.toml"), text)
        .and_then(ConfigBuilder::build)
        .map_err(|error| error.to_string())
}

fn row(config: &Config, name: &str) -> Row {
    config.explain().iter().find(|row| row.name == name).cloned().unwrap()
}

#[test]
fn all_defaults_hold() {
    let config = ConfigBuilder::new().build().unwrap();
    assert_eq!(config.queue_max, 4096);
    assert_eq!(config.explain().len(), SETTINGS.len());
    assert!(config.explain().iter().all(|row| row.source == Source::Default && row.value == row.default));
}

#[test]
fn flags_beat_environment_beats_file_beats_default() {
    let builder = ConfigBuilder::new()
        .flag("queue-max", "3")
        .unwrap()
        .environment(
            [("TIEDKV_QUEUE_MAX".to_owned(), "2".to_owned()), ("TIEDKV_LANES".to_owned(), "7".to_owned())],
            &[],
        )
        .unwrap()
        .file_text(Path::new("f.toml"), "\nqueue_max = 1\nlanes = 5\naside_limit_us = 2_000\n")
        .unwrap();
    let config = builder.build().unwrap();
    assert_eq!((config.queue_max, config.lanes, config.aside_limit), (3, 7, Duration::from_millis(2)));
    assert_eq!(row(&config, "queue_max").source.to_string(), "flag --queue-max");
    assert_eq!(row(&config, "lanes").source.to_string(), "environment TIEDKV_LANES");
    assert_eq!(row(&config, "aside_limit_us").source.to_string(), "f.toml line 4");
}

#[test]
fn unknown_names_say_where_and_what_was_meant() {
    assert_eq!(
        text("lanes = 1\n\nqueue_mx = 5").unwrap_err(),
        "tiedkv.toml line 3: unknown setting `queue_mx`; did you mean `queue_max`?"
    );
    assert_eq!(
        text("zzzzzzzzzzzzzzzzzz = 5").unwrap_err(),
        "tiedkv.toml line 1: unknown setting `zzzzzzzzzzzzzzzzzz`"
    );
    let error = ConfigBuilder::new().environment([("TIEDKV_LANE".to_owned(), "1".to_owned())], &[]).unwrap_err();
    assert_eq!(error.to_string(), "environment TIEDKV_LANE: unknown setting `lane`; did you mean `lanes`?");
    let others = [("TIEDKV_URL".to_owned(), "x".to_owned()), ("HOME".to_owned(), "/".to_owned())];
    assert!(ConfigBuilder::new().environment(others, &["TIEDKV_URL"]).is_ok());
    let error = ConfigBuilder::new().flag("lame", "1").unwrap_err();
    assert_eq!(error.to_string(), "flag --lame: unknown setting `lame`; did you mean `lanes`?");
}

#[test]
fn wrong_values_name_value_source_and_bounds() {
    assert_eq!(text("lanes = 0").unwrap_err(), "tiedkv.toml line 1: `lanes` = `0`: want 1 to 256");
    assert_eq!(text("lanes = 70000").unwrap_err(), "tiedkv.toml line 1: `lanes` = `70000`: want 1 to 256");
    assert_eq!(
        text("storage = 'disc'").unwrap_err(),
        "tiedkv.toml line 1: `storage` = `disc`: want memory or fjall"
    );
    assert!(text("lanes = ").unwrap_err().starts_with("tiedkv.toml line 1: "));
    assert!(text("[lanes]\nx = 1").unwrap_err().contains("line 1: `lanes` wants"));
    assert!(text("client_address = 'localhost'").unwrap_err().contains("want IP:PORT"));
    let missing = ConfigBuilder::new().file(Path::new("absent/tiedkv.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("absent/tiedkv.toml: "), "{missing}");
}

#[test]
fn clashes_name_both_values() {
    assert_eq!(
        text("allow_disturb = true").unwrap_err(),
        "`device` = `real` (default) and `allow_disturb` = `true` (tiedkv.toml line 1) contradict each other: \
         only a modelled device can be disturbed"
    );
    assert!(text("device_seed = 4").unwrap_err().contains("`device_seed` = `4`"));
    assert!(text("data_dir = ''").unwrap_err().contains("`storage` = `fjall` (default)"));
    assert!(
        text("client_address = '[::]:9'\ncancel_address = '[::]:9'").unwrap_err().contains("an address of its own")
    );
    assert!(text("client_address = '[::]:0'\ncancel_address = '[::]:0'").is_ok());
    assert!(text("members = ['1=a:10', '1=b:20']").unwrap_err().contains("node 1 stands in the list twice"));
    assert!(text("node_id = 3\nmembers = ['1=a:10']").unwrap_err().contains("this node is not in the list"));
    let twice = ConfigBuilder::new().flag("lanes", "1").unwrap().flag("lanes", "2").unwrap_err().to_string();
    assert!(twice.contains("`1`") && twice.contains("`2`"), "{twice}");
}

#[test]
fn members_read_the_same_in_every_layer() {
    let one = "1=db1.example:7400,zone=a";
    let two = "2=[fd00::2]:7400,cancel=10.0.0.2:9,learner";
    let file = text(&format!("members = ['{one}', '{two}']")).unwrap();
    let flags = ConfigBuilder::new().flag("members", one).unwrap().flag("members", two).unwrap().build().unwrap();
    let joined = [("TIEDKV_MEMBERS".to_owned(), format!("{one}; {two}"))];
    let environment = ConfigBuilder::new().environment(joined, &[]).unwrap().build().unwrap();
    assert_eq!(file.members, flags.members);
    assert_eq!(file.members, environment.members);
    let [first, second] = &file.members[..] else { panic!("two members") };
    assert_eq!((first.0.peer_address.as_str(), first.0.zone.as_str()), ("db1.example:7401", "a"));
    assert_eq!(second.0.node, NodeId(2));
    assert_eq!(second.0.peer_address, "[fd00::2]:7401");
    assert_eq!((second.0.cancel_address.as_str(), second.0.learner), ("10.0.0.2:9", true));
    let again: crate::config::MemberSetting = second.to_string().parse().unwrap();
    assert_eq!(&again, second);
}

#[test]
fn members_that_make_no_sense_are_refused() {
    for (member, complaint) in [
        ("a:10", "want ID="),
        ("x=a:10", "no node id"),
        ("1=a", "want HOST:PORT"),
        ("1=fd00::2:7400", "want HOST:PORT"),
        ("1=a:70000", "want HOST:PORT"),
        ("1=a:65534", "leaves no room"),
        ("1=a:10,colour=red", "not understood"),
    ] {
        let error = text(&format!("members = ['{member}']")).unwrap_err();
        assert!(error.contains(complaint), "{member}: {error}");
    }
}
