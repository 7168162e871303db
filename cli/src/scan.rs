//! `tiedkv scan`: the keys of a range in order, one per line, fetched page by page.

use crate::args::Format;
use crate::args_data::Scan;
use crate::connect::connect;
use crate::escape::escape;
use crate::outcome::{End, usage};
use crate::output::Lines;
use crate::range;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use tiedkv_client::{Row, ScanOptions, ScanToken};

/// Runs the command.
///
/// # Errors
/// When a flag is wrong or a page cannot be read: what was read is printed, and where to go on is said.
pub async fn run(args: &Scan, format: Format) -> Result<End> {
    let range = range::parse(&args.range)?;
    let token = args.resume.as_deref().map(str::parse::<ScanToken>).transpose().map_err(usage)?;
    if token.is_some() && args.limit == Some(0) {
        return Err(usage(anyhow!("the limit of a scan must be at least 1, 0 were asked for")));
    }
    let client = connect(&args.connect).await?;
    let options = ScanOptions {
        reverse: args.reverse,
        keys_only: args.keys_only,
        limit: args.limit,
        ..ScanOptions::default()
    };
    let keys_only = args.keys_only || token.as_ref().is_some_and(ScanToken::keys_only);
    let mut scan = match token {
        Some(token) => client.resume(token.with_limit(args.limit), options)?,
        None => client.scan(&range, options)?,
    };
    let mut lines = Lines::new();
    let ended = loop {
        match scan.next().await {
            Ok(Some(row)) => lines.add(|out| line(&row, keys_only, format, out))?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    lines.finish()?;
    let token = scan.token();
    client.close();
    if args.token {
        eprintln!("{token}");
    }
    ended.with_context(|| format!("the scan goes on with --resume {token}"))?;
    Ok(End::Ok)
}

/// One row as a line, appended to `out`.
fn line(row: &Row, keys_only: bool, format: Format, out: &mut Vec<u8>) {
    match format {
        Format::Raw => out.extend_from_slice(if keys_only { &row.key } else { &row.value }),
        Format::Table => {
            out.extend_from_slice(escape(&row.key).as_bytes());
            if !keys_only {
                out.push(b'\t');
                out.extend_from_slice(escape(&row.value).as_bytes());
            }
        }
        Format::Json => {
            let mut object = json!({ "key": escape(&row.key), "version": row.version.0 });
            if !keys_only {
                object["value"] = escape(&row.value).into();
            }
            if let Some(left) = row.remaining_ms {
                object["ttl_ms"] = left.into();
            }
            out.extend_from_slice(object.to_string().as_bytes());
        }
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tiedkv_protocol::ids::Version;

    #[test]
    fn a_row_is_one_line_in_each_form() {
        let row = Row {
            key: Bytes::from_static(b"a\nb"),
            value: Bytes::from_static(b"v\xff"),
            version: Version(7),
            remaining_ms: Some(1500),
        };
        let text = |keys_only, format| {
            let mut out = Vec::new();
            line(&row, keys_only, format, &mut out);
            out
        };
        assert_eq!(text(false, Format::Raw), b"v\xff\n");
        assert_eq!(text(true, Format::Raw), b"a\nb\n");
        assert_eq!(text(false, Format::Table), b"a\\nb\tv\\xff\n");
        assert_eq!(text(true, Format::Table), b"a\\nb\n");
        let json = br#"{"key":"a\\nb","ttl_ms":1500,"value":"v\\xff","version":7}"#;
        assert_eq!(text(false, Format::Json).strip_suffix(b"\n").unwrap(), json);
    }
}
