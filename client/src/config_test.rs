//! Tests of the connection string: each wrong part is named, with what would be right.

use super::*;
use crate::budget::BudgetSettings;
use proptest::prelude::*;

fn error(url: &str) -> String {
    Config::from_url(url).map(|_| ()).expect_err(url).to_string()
}

#[test]
fn the_full_form_is_read() {
    let url =
        "tiedkv://127.0.0.1:7400,[::1]:7410,name:7420/?read=stale:20ms&deadline=500ms&policy=tied3&certs=/a%20b";
    let config = Config::from_url(url).expect("a right string");
    assert_eq!(config.seeds, ["127.0.0.1:7400", "[::1]:7410", "name:7420"]);
    assert_eq!(config.level, Level::Stale { bound: Some(Duration::from_millis(20)) });
    assert_eq!(config.deadline, Duration::from_millis(500));
    assert_eq!(config.policy, ReadPolicy::TIED3);
    assert_eq!(config.certs, PathBuf::from("/a b"));
}

#[test]
fn defaults_and_the_default_port() {
    let config = Config::from_url("tiedkv://db?certs=d").expect("a right string");
    assert_eq!(config.seeds, ["db:7400"]);
    assert_eq!((config.policy, config.level), (ReadPolicy::default(), Level::Session));
    assert_eq!(config.deadline, Duration::from_secs(1));
}

#[test]
fn wrong_parts_are_named() {
    assert!(error("http://a:1").contains("begins with `tiedkv://`"));
    assert!(error("tiedkv://a:1,b:x/?certs=d").contains("address 2 `b:x`: the port"));
    assert!(error("tiedkv://::1/?certs=d").contains("stands in [ and ]"));
    assert!(error("tiedkv://[::1:7400/?certs=d").contains("`]` is missing"));
    assert!(error("tiedkv://[nope]:1/?certs=d").contains("no IPv6"));
    assert!(error("tiedkv:///?certs=d").contains("address 1 ``: it is empty"));
    assert!(error("tiedkv://a:1,,b:2/?certs=d").contains("address 2 ``: it is empty"));
    assert!(error("tiedkv://a b:1/?certs=d").contains("characters"));
    assert!(error("tiedkv://a:70000/?certs=d").contains("within 1 and 65535"));
    assert!(error("tiedkv://a:1/db?certs=d").contains("`/db` follows"));
    assert!(error("tiedkv://a:1/?certs=d&deadlien=1s").contains("did you mean `deadline`"));
    assert!(error("tiedkv://a:1/?certs=d&policy=tide2").contains("did you mean `tied2`"));
    assert!(error("tiedkv://a:1/?certs=d&read=sesion").contains("did you mean `session`"));
    assert!(error("tiedkv://a:1/?certs=d&deadline=500").contains("did you mean `500ms`"));
    assert!(error("tiedkv://a:1/?certs=d&deadline=5sec").contains("did you mean `5"));
    assert!(error("tiedkv://a:1/?certs=d&certs=e").contains("stands twice"));
    assert!(error("tiedkv://a:1/?policy=tied2").contains("`certs`: missing"));
    assert!(error("tiedkv://a:1/?certs=%zz").contains("two hex digits"));
    assert!(error("tiedkv://a:1/?certs=%+f").contains("two hex digits"));
    assert!(error("tiedkv://a:1/?certs=d&deadline=2000s").contains("within 1us and 60s"));
    assert!(error("tiedkv://a:1/?certs=d&tie_floor=2ms&tie_cap=1ms").contains("2ms is over tie_cap = 1ms"));
    assert!(error("tiedkv://a:1/?certs=d&connections=0").contains("not within 1 and 16"));
    assert!(error("tiedkv://a:1/?certs=d&gate=yes").contains("neither `on` nor `off`"));
}

#[test]
fn policies_of_operations_and_levels_are_read_and_writes_are_refused() {
    let url = "tiedkv://a:1/?certs=d&policy=tied3&policy.scan=untied&policy.get.stale=hedged+rescue&policy.scan.stale=tied2&hedge=p90&choice=c3";
    let config = Config::from_url(url).expect("a right string");
    let sort = |operation, level| config.policies.of(crate::operation::Sort { operation, level }, config.policy);
    use crate::operation::{LevelName, Operation};
    assert_eq!(sort(Operation::Get, LevelName::Stale), ReadPolicy::HEDGED.with_rescue());
    assert_eq!(sort(Operation::Scan, LevelName::Stale), ReadPolicy::TIED2);
    assert_eq!(sort(Operation::Scan, LevelName::Session), ReadPolicy::UNTIED);
    assert_eq!(sort(Operation::Get, LevelName::Session), ReadPolicy::TIED3);
    assert!((config.engine.latency.hedge_quantile - 0.9).abs() < 1e-9);
    assert!(config.engine.gate.is_some(), "judged by default");
    assert!(error("tiedkv://a:1/?certs=d&policy.put=tied2").contains("no read policy takes one"));
    assert!(error("tiedkv://a:1/?certs=d&policy.gte=tied2").contains("want get, multi_get or scan"));
    assert!(error("tiedkv://a:1/?certs=d&policy.gte=tied2").contains("did you mean `get`?"));
}

#[test]
fn a_setting_that_can_have_no_effect_says_why() {
    let with = |rest: &str| error(&format!("tiedkv://a:1/?certs=d&{rest}"));
    assert!(with("hedge=p95").contains("no policy of this client hedges"));
    assert!(with("policy=tied2&rescue=p98").contains("no policy of this client has +rescue"));
    assert!(with("policy=untied&tie_cap=1ms").contains("no policy of this client ties"));
    assert!(with("policy=hedged&gate=on").contains("no policy of this client ties"));
    assert!(with("gate=off&hold_out=0.1").contains("gate=on"));
    assert!(with("policy=hedged&hedge=p100").contains("no quantile"));
    assert!(with("policy=hedged&hedge=0ms").contains("sends every read twice"));
    assert!(with("budget=2").contains("no share"));
    let mut config = Config::from_url("tiedkv://a:1/?certs=c").unwrap();
    config.engine.budget.burst = f64::NAN;
    assert!(config.check().unwrap_err().to_string().contains("burst"));
    config.engine.budget = BudgetSettings { floor_per_second: -1.0, ..BudgetSettings::default() };
    assert!(config.check().unwrap_err().to_string().contains("floor"));
    assert!(with("choice=fastest").contains("none of `random`"));
    assert!(with("choice=p2").contains("did you mean `p2c`"));
    assert!(with("policy.scan=hedged").contains("`policy.scan=untied` has an effect"));
    assert!(with("policy.scan.stale=tied2+rescue").contains("`policy.scan.stale=tied2` has an effect"));
    assert!(Config::from_url("tiedkv://a:1/?certs=d&policy.multi_get=hedged&hedge=20ms").is_ok());
    assert!(with("choice=p2c&clients=64").contains("needs choice=c3"));
    assert!(with("clients=1").contains("needs choice=c3"));
}

#[test]
fn the_clients_of_c3_have_bounds() {
    let with = |clients: &str| Config::from_url(&format!("tiedkv://a:1/?certs=d&choice=c3&clients={clients}"));
    assert_eq!(with("64").unwrap().engine.clients, 64.0);
    assert_eq!(with("1").unwrap().engine.clients, EngineSettings::default().clients);
    for wrong in ["0", "10001"] {
        assert!(with(wrong).unwrap_err().to_string().contains("not within 1 and 10000"), "{wrong}");
    }
    assert!(with("1.5").unwrap_err().to_string().contains("no whole number"));
    let mut config = with("2").unwrap();
    config.engine.clients = f64::NAN;
    assert!(config.check().unwrap_err().to_string().contains("clients"));
}

#[test]
fn what_a_program_changed_has_an_effect_or_is_an_error() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::new(["a:1"], "certs");
        config.check().expect("unchanged");
        change(&mut config);
        config.check().expect_err("it has no effect").to_string()
    };
    let hedge = |config: &mut Config| config.engine.latency.hedge_fixed = Some(Duration::from_millis(20));
    assert!(refused(hedge).contains("no policy of this client hedges"));
    let untied = |config: &mut Config| (config.policy, config.tie_delay_cap) = (ReadPolicy::UNTIED, Duration::MAX);
    assert!(refused(untied).contains("no policy of this client ties"));
    let rescue = |config: &mut Config| {
        (config.policy, config.engine.latency.rescue_quantile) = (ReadPolicy::TIED2, 0.9);
    };
    assert!(refused(rescue).contains("no policy of this client has +rescue"));
    assert!(refused(|config| config.engine.clients = 64.0).contains("needs choice=c3"));
    assert!(refused(|config| (config.engine.gate, config.engine.hold_out) = (None, 0.5)).contains("gate=on"));
    let scans = |config: &mut Config| config.policies.set("scan.stale".parse().unwrap(), ReadPolicy::HEDGED);
    assert!(refused(scans).contains("on scans") && refused(scans).contains("say `untied`"));
    let mut hedged = Config::new(["a:1"], "certs");
    hedge(&mut hedged);
    hedged.policies.set("get.stale".parse().unwrap(), ReadPolicy::HEDGED);
    hedged.check().expect("gets hedge");
    hedged.policy = ReadPolicy::UNTIED;
    hedged.check().expect("nothing else was changed");
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        let _ = Config::from_url(&text);
        let _ = Config::from_url(&format!("{SCHEME}{text}"));
        let _ = Config::from_url(&format!("{SCHEME}a:1/?{text}"));
    }
}

#[test]
fn the_listed_defaults_are_those_in_force() {
    let certs = "certs=x";
    let listed: Vec<String> = SETTINGS
        .iter()
        // A hedge without a policy that hedges is an error, and so are the clients of C3 without it.
        .filter(|setting| !setting.default.is_empty() && !["hedge", "clients"].contains(&setting.name))
        .map(|setting| format!("{}={}", setting.name, setting.default))
        .collect();
    let said = Config::from_url(&format!("tiedkv://a:1/?{certs}&{}", listed.join("&"))).unwrap();
    let unsaid = Config::from_url(&format!("tiedkv://a:1/?{certs}")).unwrap();
    assert_eq!(format!("{said:?}"), format!("{unsaid:?}"));
}

proptest! {
    #[test]
    fn any_text_is_settings_or_an_error_that_names_a_part(
        junk in "[a-z0-9:/?&=%.,\\[\\]\u{e4} -]{0,60}",
        seeds in prop::collection::vec("[a-z0-9.:\\[\\]-]{0,12}", 0..4),
        names in prop::collection::vec(
            (prop::sample::select(vec!["certs", "read", "deadline", "policy", "policy.scan", "hedge", "budget", "gate", "x"]),
             "[a-z0-9.:%+_]{0,8}"),
            0..5,
        ),
    ) {
        let query: Vec<String> = names.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for text in [junk, format!("tiedkv://{}/?{}", seeds.join(","), query.join("&"))] {
            match Config::from_url(&text) {
                Ok(config) => prop_assert!(config.check().is_ok() && !config.seeds.is_empty(), "{text}"),
                Err(error) => prop_assert!(!error.to_string().is_empty(), "{text}"),
            }
        }
    }
}
