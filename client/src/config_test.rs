//! Tests of the connection string: each wrong part is named, with what would be right.

use super::*;

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
    assert!(error("tiedkv://a:1/?certs=d&deadline=2000s").contains("within 1us and 60s"));
    assert!(error("tiedkv://a:1/?certs=d&tie_floor=2ms&tie_cap=1ms").contains("2ms is over tie_cap = 1ms"));
    assert!(error("tiedkv://a:1/?certs=d&connections=0").contains("not within 1 and 16"));
    assert!(error("tiedkv://a:1/?certs=d&gate=yes").contains("neither `on` nor `off`"));
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
        // A hedge without a policy that hedges is an error.
        .filter(|setting| !setting.default.is_empty() && setting.name != "hedge")
        .map(|setting| format!("{}={}", setting.name, setting.default))
        .collect();
    let said = Config::from_url(&format!("tiedkv://a:1/?{certs}&{}", listed.join("&"))).unwrap();
    let unsaid = Config::from_url(&format!("tiedkv://a:1/?{certs}")).unwrap();
    assert_eq!(format!("{said:?}"), format!("{unsaid:?}"));
}
