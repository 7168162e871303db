//! `--print-config` of the commands that connect: every setting of the client with its source and default. (That of a
//! node is the server's own table: [`crate::start`].)

use crate::args::{Connect, Format};
use crate::connect::{config, url};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::Result;
use serde_json::json;
use tiedkv_client::config::SETTINGS;
use tiedkv_client::switchboard::{VARIABLE, from_environment};

/// One setting in force.
#[derive(Debug)]
struct Row {
    name: &'static str,
    value: String,
    source: String,
    default: &'static str,
}

/// Prints the settings; they are checked first.
///
/// # Errors
/// When the connection string or the environment is wrong.
pub fn run(connect: &Connect, format: Format) -> Result<End> {
    config(connect)?;
    let url = url(connect)?;
    let from = if std::env::var("TIEDKV_CLUSTER").is_ok_and(|set| set == url) {
        "environment TIEDKV_CLUSTER"
    } else {
        "flag --cluster"
    };
    let mut rows = rows(url, from);
    let tied = std::env::var(VARIABLE).ok();
    from_environment(tied.as_deref()).map_err(usage)?;
    let source = tied.as_ref().map_or_else(|| "default".to_owned(), |_| "environment".to_owned());
    rows.push(Row { name: VARIABLE, value: tied.unwrap_or_else(|| "on".to_owned()), source, default: "on" });
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

fn rows(url: &str, from: &str) -> Vec<Row> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let seeds = place.trim_start_matches(tiedkv_client::config::SCHEME).trim_end_matches('/');
    let set = |name: &str| query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name);
    let mut rows = vec![Row { name: "seeds", value: seeds.to_owned(), source: from.to_owned(), default: "" }];
    rows.extend(SETTINGS.iter().map(|setting| match set(setting.name) {
        Some((_, value)) => {
            Row { name: setting.name, value: value.to_owned(), source: from.to_owned(), default: setting.default }
        }
        None => Row {
            name: setting.name,
            value: setting.default.to_owned(),
            source: "default".to_owned(),
            default: setting.default,
        },
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_source() {
        let rows = rows("tiedkv://a:1,b:2/?certs=x&policy=tied3", "flag --cluster");
        assert_eq!(rows.len(), SETTINGS.len() + 1);
        let row = |name| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!((row("seeds").value.as_str(), row("policy").value.as_str()), ("a:1,b:2", "tied3"));
        assert_eq!((row("policy").source.as_str(), row("read").source.as_str()), ("flag --cluster", "default"));
        assert_eq!(row("deadline").value, "1s");
    }
}
