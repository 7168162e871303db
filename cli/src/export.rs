//! `tiedkv export`: all rows of a range as lines ([`crate::lines`]); goes on behind the last whole line of a file that
//! was cut. A signal ends an export to a file behind a whole line.
//!
//! A write to the cluster while it runs is in the export or not, page by page: each page is consistent in itself.

use crate::args_data::Export;
use crate::connect::connect;
use crate::lines::{self, Line};
use crate::outcome::{End, usage};
use crate::output::Lines;
use crate::progress;
use crate::range;
use crate::signals::Signals;
use anyhow::{Context, Result, bail};
use indicatif::ProgressFinish;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use tiedkv_client::{ScanOptions, ScanRange};

/// What a file that was cut holds already.
struct Kept {
    file: File,
    rows: u64,
    /// The range behind its last row; `None`: it is whole.
    rest: Option<ScanRange>,
}

/// Runs the command.
///
/// # Errors
/// When the file cannot be written or a page cannot be read; what was read is in the file.
pub async fn run(args: &Export) -> Result<End> {
    let range = range::parse(&args.range)?;
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    // An export to a pipe is ended by the signal itself: it may be waiting for its reader. A shell has an end of its own.
    let in_order = file.is_some() && args.connect.shared.is_none();
    let mut signals = in_order.then(Signals::listen).transpose()?;
    let (mut out, rows, range) = match file {
        None => (Lines::new(), 0, range),
        Some(path) if args.resume => {
            let kept = kept(path, range).map_err(usage)?;
            let Some(rest) = kept.rest else {
                eprintln!("{}: whole already, {} rows", path.display(), kept.rows);
                return Ok(End::Ok);
            };
            (Lines::to(kept.file), kept.rows, rest)
        }
        Some(path) => {
            let file = File::create_new(path);
            let hint = || format!("{}: to go on with a file that was cut use --resume", path.display());
            (Lines::to(file.with_context(hint).map_err(usage)?), 0, range)
        }
    };
    let mut count = rows;
    let ended = tokio::select! {
        biased;
        // An output that failed is not written to again.
        ended = write(args, &range, &mut out, &mut count) => Some(ended?),
        () = next(&mut signals) => None,
    };
    out.finish()?;
    let written = || match file {
        Some(path) => format!("{count} rows are in {}; go on with --resume", path.display()),
        None => format!("{count} rows were written"),
    };
    let Some(ended) = ended else {
        eprintln!("tiedkv: interrupted: {}", written());
        return Ok(End::Interrupted);
    };
    ended.with_context(written)?;
    eprintln!("{count} rows");
    Ok(End::Ok)
}

/// Writes the rows of the range and the last line; counts them. Whether all could be read.
///
/// # Errors
/// When nothing could be read or the output failed.
async fn write(
    args: &Export,
    range: &ScanRange,
    out: &mut Lines,
    count: &mut u64,
) -> Result<Result<(), tiedkv_client::Error>> {
    let client = connect(&args.connect).await?;
    let total = client.count(range).await?;
    // However this ends.
    let bar = progress::work(Some(total), "rows").with_finish(ProgressFinish::AndClear);
    let mut scan = client.scan(range, ScanOptions::default())?;
    let ended = loop {
        match scan.next().await {
            Ok(Some(row)) => out.add(|line| lines::write_row(&row, line))?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        *count += 1;
        bar.inc(1);
    };
    if ended.is_ok() {
        out.add(|line| lines::write_end(*count, line))?;
    }
    client.close();
    Ok(ended)
}

/// The next signal; never, where nobody listens.
async fn next(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// Reads the file and cuts a half line off its end.
fn kept(path: &Path, range: ScanRange) -> Result<Kept> {
    let name = || path.display().to_string();
    let mut file = OpenOptions::new().read(true).write(true).open(path).with_context(name)?;
    let (mut rows, mut whole_bytes, mut last, mut number) = (0, 0, None, 0_u64);
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    let mut ended = false;
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).with_context(name)?;
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        number += 1;
        match lines::read(whole).with_context(|| format!("{}: line {number}", name()))? {
            Line::Row { key, .. } if !ended => {
                rows += 1;
                last = Some(key);
            }
            Line::End { rows: said } if said == rows && !ended => ended = true,
            _ => bail!("{}: line {number} does not fit what is before it", name()),
        }
        whole_bytes += read as u64;
    }
    file.set_len(whole_bytes).with_context(name)?;
    file.seek(SeekFrom::End(0)).with_context(name)?;
    let rest = if ended { None } else { Some(last.map_or_else(|| range.clone(), |last| range.behind(&last))) };
    Ok(Kept { file, rows, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_cut_file_is_kept_up_to_its_last_whole_line() {
        let two = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
        let cut = file(&format!("{two}{{\"key\":\"c\",\"va"));
        let kept = kept(cut.path(), ScanRange::prefix("")).unwrap();
        assert_eq!((kept.rows, kept.rest), (2, Some(ScanRange::starting_at(&b"b\0"[..]))));
        assert_eq!(std::fs::read_to_string(cut.path()).unwrap(), two);
    }

    #[test]
    fn a_whole_file_and_an_empty_one_are_known() {
        let whole = file("{\"key\":\"a\",\"value\":\"1\"}\n{\"end\":1}\n");
        assert_eq!(kept(whole.path(), ScanRange::all()).unwrap().rest, None);
        let empty = file("");
        assert_eq!(kept(empty.path(), ScanRange::prefix("k")).unwrap().rest, Some(ScanRange::prefix("k")));
        for wrong in ["{\"end\":1}\n", "x\n", "{\"end\":0}\n{\"key\":\"a\",\"value\":\"1\"}\n"] {
            assert!(kept(file(wrong).path(), ScanRange::all()).is_err(), "{wrong}");
        }
    }
}
