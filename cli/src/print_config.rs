//! `--print-config` of the commands that connect: every setting of the client with its source and default. (That of a
//! node is the server's own table: [`crate::start`].)

use crate::args::{Connect, Format};
use crate::connect::{config, url};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::Result;
use serde_json::json;
use tiedkv_client::Config;
use tiedkv_client::config::SETTINGS;
use tiedkv_client::switchboard::{VARIABLE, from_environment};

/// Stands for one setting per operation: `policy.get` and the like.
const OF_OPERATIONS: &str = "policy.OPERATION";

/// One setting in force.
#[derive(Debug)]
struct Row {
    name: String,
    value: String,
    source: String,
    default: &'static str,
}

/// Prints the settings; they are checked first.
///
/// # Errors
/// When the connection string or the environment is wrong.
pub fn run(connect: &Connect, format: Format) -> Result<End> {
    let in_force = config(connect)?;
    let url = url(connect)?;
    let from = if std::env::var("TIEDKV_CLUSTER").is_ok_and(|set| set == url) {
        "environment TIEDKV_CLUSTER"
    } else {
        "flag --cluster"
    };
    // A deadline that is named bounds the connecting as well.
    let bounded = in_force.connect_deadline < Config::from_url(url).map_err(usage)?.connect_deadline;
    let mut rows = rows(url, from, bounded);
    let tied = std::env::var(VARIABLE).ok();
    from_environment(tied.as_deref()).map_err(usage)?;
    let source = tied.as_ref().map_or_else(|| "default".to_owned(), |_| "environment".to_owned());
    let value = tied.unwrap_or_else(|| "on".to_owned());
    rows.push(Row { name: VARIABLE.to_owned(), value, source, default: "on" });
    match format {
        Format::Json => {
            let row = |row: &Row| json!({ "name": row.name, "value": row.value, "source": row.source, "default": row.default });
            output::json(&json!({ "settings": rows.iter().map(row).collect::<Vec<_>>() }))?;
        }
        Format::Table | Format::Raw => {
            let line = |row: &Row| {
                let default = if row.default.is_empty() { "none".to_owned() } else { format!("`{}`", row.default) };
                format!("{} = `{}`  ({}; default {default})\n", row.name, row.value, row.source)
            };
            output::bytes(rows.iter().map(line).collect::<String>().as_bytes())?;
        }
    }
    Ok(End::Ok)
}

/// The settings of a connection string; `bounded`: its deadline is that of the connecting, too.
fn rows(url: &str, from: &str, bounded: bool) -> Vec<Row> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let seeds = place.trim_start_matches(tiedkv_client::config::SCHEME).trim_end_matches('/');
    let given: Vec<(&str, &str)> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let mut rows = vec![row("seeds", seeds, from, "")];
    for setting in &SETTINGS {
        let named = |name: &str| match setting.name {
            OF_OPERATIONS => name.starts_with("policy."),
            own => name == own,
        };
        let before = rows.len();
        let own = given.iter().copied().filter(|&(name, _)| named(name));
        rows.extend(own.map(|(name, value)| row(name, value, from, setting.default)));
        if rows.len() == before {
            rows.push(row(setting.name, setting.default, "default", setting.default));
        }
    }
    let deadline = given.iter().copied().find(|&(name, _)| name == "deadline").filter(|_| bounded);
    let connect = rows.iter_mut().find(|row| row.name == "connect");
    if let (Some((_, deadline)), Some(connect)) = (deadline, connect) {
        connect.value = deadline.to_owned();
        connect.source = format!("{from}, by deadline");
    }
    rows
}

fn row(name: &str, value: &str, source: &str, default: &'static str) -> Row {
    Row { name: name.to_owned(), value: value.to_owned(), source: source.to_owned(), default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_source() {
        let rows = rows("tiedkv://a:1,b:2/?certs=x&policy=tied3", "flag --cluster", false);
        assert_eq!(rows.len(), SETTINGS.len() + 1);
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!((row("seeds").value.as_str(), row("policy").value.as_str()), ("a:1,b:2", "tied3"));
        assert_eq!((row("policy").source.as_str(), row("read").source.as_str()), ("flag --cluster", "default"));
        assert_eq!(row("deadline").value, "1s");
    }

    #[test]
    fn policies_of_operations_and_a_bounded_connecting_are_shown() {
        let url = "tiedkv://a:1/?certs=x&deadline=300ms&policy.get=untied&policy.multi_get=tied2";
        let all = rows(url, "flag --cluster", true);
        let shown = |name: &str| {
            let row = all.iter().find(|row| row.name == name).unwrap();
            (row.value.as_str(), row.source.as_str())
        };
        assert_eq!(shown("policy.get"), ("untied", "flag --cluster"));
        assert_eq!(shown("policy.multi_get"), ("tied2", "flag --cluster"));
        assert!(all.iter().all(|row| row.name != OF_OPERATIONS));
        assert_eq!(shown("policy"), ("tied2+rescue", "default"));
        assert_eq!(shown("connect"), ("300ms", "flag --cluster, by deadline"));
        let named = rows("tiedkv://a:1/?certs=x&connect=2s&deadline=300ms", "flag --cluster", false);
        let connect = named.iter().find(|row| row.name == "connect").unwrap();
        assert_eq!((connect.value.as_str(), connect.source.as_str()), ("2s", "flag --cluster"));
    }
}
