//! `tiedkv import`: puts the rows of an export, in batches of which many are out at a time. What is known to be written
//! is a number of lines from the beginning, so that an import that failed goes on from there.

use crate::args::Format;
use crate::args_data::Import;
use crate::connect::connect;
use crate::lines::{self, Line};
use crate::outcome::{End, usage};
use crate::output;
use crate::progress;
use crate::signals::Signals;
use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tiedkv_client::{Batch, Client, WriteOptions};
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use tokio::task::{JoinHandle, JoinSet};

/// Longest wait for one batch, retries included.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest line: every byte of key and value written as six characters.
const LINE_BYTES_MAX: u64 = 6 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64 + 1024;
/// Most rows of one batch.
const BATCH_ROWS: usize = 128;
/// Most bytes of keys and values of one batch; a larger row goes alone.
const BATCH_BYTES: usize = 256 * 1024;

/// Runs the command.
///
/// # Errors
/// When a line is wrong or a write fails: how many lines to skip the next time is said.
pub async fn run(args: &Import, format: Format) -> Result<End> {
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let (input, total): (Box<dyn Read>, _) = match file {
        None => (Box::new(std::io::stdin()), None),
        Some(path) => {
            let file = File::open(path).with_context(|| path.display().to_string()).map_err(usage)?;
            let length = file.metadata().map(|metadata| metadata.len()).ok();
            (Box::new(file), length)
        }
    };
    let client = connect(&args.connect).await?;
    let bar = progress::work(total, "bytes");
    let mut importer = Importing::new(Client::clone(&client), args.concurrency as usize);
    let input = BufReader::with_capacity(1 << 16, input);
    // A shell has an end of its own for what is interrupted.
    let alone = args.connect.shared.is_none();
    let signals = alone.then(|| end_at_signal(importer.done.clone(), args.skip)).transpose()?;
    let ended = importer.run(input, args.skip, |bytes| bar.set_position(bytes)).await;
    if let Some(signals) = signals {
        signals.abort();
    }
    bar.finish_and_clear();
    client.close();
    let done = lock(&importer.done).lines().max(args.skip);
    let saw_end = ended.with_context(|| format!("the first {done} lines are written; go on with --skip {done}"))?;
    if !saw_end {
        eprintln!("tiedkv: the input has no last line `{{\"end\":ROWS}}`: it may have been cut");
    }
    let rows = importer.rows;
    match format {
        Format::Json => output::json(&json!({ "rows": rows, "skipped_lines": args.skip, "whole": saw_end }))?,
        Format::Table | Format::Raw => output::bytes(format!("{rows} rows\n").as_bytes())?,
    }
    Ok(End::Ok)
}

/// Ends the program at a signal and says where to go on: the main thread may be waiting for the input.
fn end_at_signal(done: Arc<Mutex<Done>>, skip: u64) -> Result<JoinHandle<()>> {
    let mut signals = Signals::listen()?;
    Ok(tokio::spawn(async move {
        signals.next().await;
        let done = lock(&done).lines().max(skip);
        eprintln!("tiedkv: interrupted: the first {done} lines are written; go on with --skip {done}");
        std::process::exit(i32::from(End::Interrupted as u8));
    }))
}

/// How far an import is.
#[derive(Debug, Default)]
struct Done {
    /// First lines of the batches that are not known to be written.
    open: BTreeSet<u64>,
    /// First line of the batch in the making.
    making: Option<u64>,
    /// Lines taken.
    taken: u64,
}

impl Done {
    /// Line `number` belongs to the batch in the making.
    fn took(&mut self, number: u64, first_line: u64) {
        (self.making, self.taken) = (Some(first_line), number);
    }

    /// The batch in the making is out.
    fn sent(&mut self, first_line: u64) {
        self.making = None;
        self.open.insert(first_line);
    }

    /// Lines from the beginning of which every one is written.
    fn lines(&self) -> u64 {
        let first = self.open.first().copied().into_iter().chain(self.making).min();
        first.map_or(self.taken, |first| first - 1)
    }
}

fn lock(done: &Mutex<Done>) -> MutexGuard<'_, Done> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lines from whatever can be read, each bounded.
struct Reader<R> {
    input: R,
    number: u64,
    bytes: u64,
    line: Vec<u8>,
}

impl<R: BufRead> Reader<R> {
    /// The next line without its end; `None` at the end of the input.
    fn next(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let mut limited = (&mut self.input).take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut self.line).context("reading the input")?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        if read as u64 == LINE_BYTES_MAX {
            return Err(usage(anyhow!("line {} is longer than any row", self.number)));
        }
        Ok(Some(self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }
}

/// Rows on their way from lines to the cluster.
pub struct Importing {
    client: Client,
    concurrency: usize,
    /// First line and keys of each batch that was written.
    out: JoinSet<(u64, Vec<Bytes>, Result<(), tiedkv_client::Error>)>,
    done: Arc<Mutex<Done>>,
    /// Keys of the batches that are out and of the next one.
    keys: HashSet<Bytes>,
    next: Next,
    rows: u64,
    /// A write failed.
    failed: bool,
}

/// A row to be put.
struct ImportRow {
    key: Bytes,
    value: Bytes,
    ttl_ms: Option<u64>,
}

/// The batch in the making.
#[derive(Default)]
struct Next {
    first_line: u64,
    rows: Vec<ImportRow>,
    bytes: usize,
}

impl Importing {
    /// Of no line yet; `concurrency` batches may be out at a time.
    pub fn new(client: Client, concurrency: usize) -> Self {
        Self {
            client,
            concurrency,
            out: JoinSet::new(),
            done: Arc::default(),
            keys: HashSet::new(),
            next: Next::default(),
            rows: 0,
            failed: false,
        }
    }

    /// Puts the rows of all lines but the first `skip`; `progress` is told the bytes read. True when the last line was
    /// there.
    ///
    /// # Errors
    /// When a line is wrong (all rows before it are written then) or a write fails.
    pub async fn run(&mut self, input: impl BufRead, skip: u64, progress: impl Fn(u64)) -> Result<bool> {
        let ended = self.lines(input, skip, progress).await;
        if !self.failed {
            self.send().await?;
            self.all_done().await?;
        }
        ended
    }

    async fn lines(&mut self, input: impl BufRead, skip: u64, progress: impl Fn(u64)) -> Result<bool> {
        let mut reader = Reader { input, number: 0, bytes: 0, line: Vec::new() };
        let mut end = None;
        while let Some(text) = reader.next()? {
            let line = lines::read(text);
            let number = reader.number;
            let wrong = |what: &str| usage(anyhow!("line {number}: {what}"));
            if end.is_some() {
                return Err(wrong("stands behind the last line"));
            }
            match line.with_context(|| format!("line {number}")).map_err(usage)? {
                Line::End { rows } if rows == number - 1 => end = Some(rows),
                Line::End { rows } => return Err(wrong(&format!("{rows} rows should be before it"))),
                Line::Row { .. } if number <= skip => lock(&self.done).taken = number,
                Line::Row { key, .. } if key.is_empty() || key.len() > KEY_BYTES_MAX => {
                    return Err(wrong(&format!(
                        "a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}",
                        key.len()
                    )));
                }
                Line::Row { value, .. } if value.len() > VALUE_BYTES_MAX => {
                    let bytes = value.len();
                    return Err(wrong(&format!(
                        "a value has at most {VALUE_BYTES_MAX} bytes, this one has {bytes}"
                    )));
                }
                Line::Row { key, value, ttl_ms } => self.row(number, ImportRow { key, value, ttl_ms }).await?,
            }
            progress(reader.bytes);
        }
        Ok(end.is_some())
    }

    async fn row(&mut self, number: u64, row: ImportRow) -> Result<()> {
        if self.keys.contains(&row.key) {
            // Lines of one key are applied in their order.
            self.send().await?;
            self.all_done().await?;
        }
        let bytes = row.key.len() + row.value.len();
        if self.next.bytes + bytes > BATCH_BYTES {
            self.send().await?;
        }
        if self.next.rows.is_empty() {
            self.next.first_line = number;
        }
        lock(&self.done).took(number, self.next.first_line);
        self.keys.insert(row.key.clone());
        self.next.bytes += bytes;
        self.next.rows.push(row);
        if self.next.rows.len() >= BATCH_ROWS { self.send().await } else { Ok(()) }
    }

    /// Sends what was collected, once there is room.
    async fn send(&mut self) -> Result<()> {
        if self.next.rows.is_empty() {
            return Ok(());
        }
        // A batch that is one large row waits for the others: so bytes in memory stay bounded.
        let large = self.next.bytes > BATCH_BYTES;
        while self.out.len() >= self.concurrency || (large && !self.out.is_empty()) {
            self.one_done().await?;
        }
        let Next { first_line, rows, .. } = std::mem::take(&mut self.next);
        lock(&self.done).sent(first_line);
        let (client, done) = (self.client.clone(), self.done.clone());
        self.out.spawn(async move {
            let keys = rows.iter().map(|row| row.key.clone()).collect();
            let written = put(&client, rows).await;
            if written.is_ok() {
                lock(&done).open.remove(&first_line);
            }
            (first_line, keys, written)
        });
        Ok(())
    }

    async fn all_done(&mut self) -> Result<()> {
        while !self.out.is_empty() {
            self.one_done().await?;
        }
        Ok(())
    }

    async fn one_done(&mut self) -> Result<()> {
        let Some(ended) = self.out.join_next().await else { return Ok(()) };
        let (first_line, keys, written) = ended.context("a batch was lost")?;
        self.failed |= written.is_err();
        written.with_context(|| format!("the batch from line {first_line} on"))?;
        self.rows += keys.len() as u64;
        for key in keys {
            self.keys.remove(&key);
        }
        Ok(())
    }
}

async fn put(client: &Client, mut rows: Vec<ImportRow>) -> Result<(), tiedkv_client::Error> {
    let options = WriteOptions { deadline: Some(DEADLINE), ..WriteOptions::default() };
    // One row alone may be larger than a batch.
    if let [ImportRow { ttl_ms: None, .. }] = rows.as_slice()
        && let Some(row) = rows.pop()
    {
        return client.put_with(row.key, row.value, options).await.map(drop);
    }
    let batch = rows.into_iter().fold(Batch::new(), |batch, row| match row.ttl_ms {
        Some(left) => batch.put_for(row.key, row.value, Duration::from_millis(left)),
        None => batch.put(row.key, row.value),
    });
    client.batch_with(batch, options).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_without_a_gap_before_them_are_done() {
        let mut done = Done::default();
        done.took(1, 1);
        assert_eq!(done.lines(), 0);
        done.sent(1);
        done.took(129, 129);
        done.sent(129);
        done.took(300, 257);
        done.open.remove(&129);
        assert_eq!(done.lines(), 0, "the first batch is still out");
        done.open.remove(&1);
        assert_eq!(done.lines(), 256);
        done.sent(257);
        done.open.remove(&257);
        assert_eq!(done.lines(), 300);
    }
}
