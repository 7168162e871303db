//! Ordered scans: pages of a range, fetched ahead within bounds; counts; whether a key exists.
//!
//! Each page is one read of its own, with a deadline and a class of its own, and seen from one view of one replica:
//! a scan is consistent within a page, not across pages; within a session later pages are never older. Nodes keep
//! nothing between pages, so a scan that nobody reads on costs them nothing and can be resumed from its token for as
//! long as its caller likes. Pages are neither hedged nor rescued: they take longer than gets do.

use crate::clock;
use crate::error::{Cause, Error};
use crate::operation::Operation;
use crate::options::{ReadOptions, deadline_of};
use crate::tied_read::{Whole, check_key, read};
use crate::view::ViewInner;
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::PositionToken;
use tiedkv_protocol::limits::{SCAN_PAGE_BYTES_MAX, SCAN_PAGE_ROWS_MAX};
use tiedkv_protocol::request::{Class, ReadOperation};
use tiedkv_protocol::response::Failure;
use tiedkv_protocol::scan::{Columns, Page, PageRequest, after, prefix_end};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

pub use tiedkv_protocol::scan::Row;

/// Deadline of one page unless the options say otherwise.
pub const PAGE_DEADLINE: Duration = Duration::from_secs(10);

/// Keys from one bound up to, without, another. A range whose lower bound is not below its upper one is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanRange {
    lo: Bytes,
    hi: Option<Bytes>,
}

impl ScanRange {
    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// Keys from `lo` up to, without, `hi`.
    pub fn between(lo: impl Into<Bytes>, hi: impl Into<Bytes>) -> Self {
        Self { lo: lo.into(), hi: Some(hi.into()) }
    }

    /// Keys from `lo` on.
    pub fn starting_at(lo: impl Into<Bytes>) -> Self {
        Self { lo: lo.into(), hi: None }
    }

    /// Keys before `hi`.
    pub fn before(hi: impl Into<Bytes>) -> Self {
        Self { lo: Bytes::new(), hi: Some(hi.into()) }
    }

    /// Keys that begin with `prefix`; the empty prefix begins every key.
    ///
    /// ```
    /// use tiedkv_client::ScanRange;
    ///
    /// assert_eq!(ScanRange::prefix("user:"), ScanRange::between("user:", "user;"));
    /// assert_eq!(ScanRange::prefix(""), ScanRange::all());
    /// ```
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let lo = prefix.into();
        Self { hi: prefix_end(&lo), lo }
    }

    /// What is left of it behind `key`.
    pub fn behind(&self, key: &[u8]) -> Self {
        Self { lo: after(key).max(self.lo.clone()), hi: self.hi.clone() }
    }

    /// This one key.
    fn key(key: Bytes) -> Self {
        Self { hi: Some(after(&key)), lo: key }
    }

    fn page(&self, columns: Columns, rows_max: u32, bytes_max: u32) -> PageRequest {
        PageRequest { lo: self.lo.clone(), hi: self.hi.clone(), reverse: false, columns, rows_max, bytes_max }
    }
}

/// Choices of one scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// From the greatest key downwards. Default false.
    pub reverse: bool,
    /// Values are not sent. Default false.
    pub keys_only: bool,
    /// Most rows of the whole scan; at least 1. Default none.
    pub limit: Option<u64>,
    /// Most rows of one page; 1 to 65,536. Default 4,096.
    pub page_rows: u32,
    /// Most bytes of one page (a larger row travels alone); 1 to 1 MiB. Default 256 KiB.
    pub page_bytes: u32,
    /// Pages fetched or being fetched while one is read; 1 to 16. Default 2. The scan holds at most one page more.
    pub pages_ahead: u8,
    /// Policy (one with a hedge or a rescue is an error), level, token; the deadline is that of each page (default
    /// [`PAGE_DEADLINE`]), the class defaults to batch.
    pub read: ReadOptions,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            reverse: false,
            keys_only: false,
            limit: None,
            page_rows: 4096,
            page_bytes: 256 * 1024,
            pages_ahead: 2,
            read: ReadOptions::default(),
        }
    }
}

/// Where a scan goes on: what is left of it, and what its session has seen.
///
/// Travels as text `scan1.CLUSTER.POSITION.ORDER.LEFT.LO.HI`: hex cluster, decimal position, `up` or `down` with `k`
/// behind it when only keys are asked for, rows left or `-`, bounds in hex, `-` for no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanToken {
    seen: PositionToken,
    range: ScanRange,
    reverse: bool,
    keys_only: bool,
    left: Option<u64>,
}

impl ScanToken {
    /// Only keys were asked for.
    pub fn keys_only(&self) -> bool {
        self.keys_only
    }

    /// The same place with a limit of its own for what follows; `None` leaves what is left of the scan's.
    #[must_use]
    pub fn with_limit(self, limit: Option<u64>) -> Self {
        Self { left: limit.or(self.left), ..self }
    }
}

impl fmt::Display for ScanToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PositionToken { cluster, position, .. } = self.seen;
        let order = if self.reverse { "down" } else { "up" };
        let keys = if self.keys_only { "k" } else { "" };
        write!(f, "scan1.{:032x}.{}.{order}{keys}.", cluster.0, position.0)?;
        match self.left {
            Some(left) => write!(f, "{left}.")?,
            None => f.write_str("-.")?,
        }
        self.range.lo.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(".")?;
        match &self.range.hi {
            Some(hi) => hi.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            None => f.write_str("-"),
        }
    }
}

/// Why a text is no scan token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a scan token: want scan1.CLUSTER.POSITION.ORDER.LEFT.LO.HI, as printed by a scan")]
pub struct BadScanToken;

impl FromStr for ScanToken {
    type Err = BadScanToken;

    fn from_str(text: &str) -> Result<Self, BadScanToken> {
        let parts: Vec<&str> = text.split('.').collect();
        let ["scan1", cluster, position, order, left, lo, hi] = parts[..] else { return Err(BadScanToken) };
        let seen = format!("{cluster}.0.{position}").parse().map_err(|_| BadScanToken)?;
        let (order, keys_only) = order.strip_suffix('k').map_or((order, false), |order| (order, true));
        let reverse = match order {
            "up" => false,
            "down" => true,
            _ => return Err(BadScanToken),
        };
        let left = match left {
            "-" => None,
            number if number.starts_with('+') => return Err(BadScanToken),
            number => Some(number.parse().map_err(|_| BadScanToken)?),
        };
        let hi = if hi == "-" { None } else { Some(unhex(hi)?) };
        Ok(Self { seen, range: ScanRange { lo: unhex(lo)?, hi }, reverse, keys_only, left })
    }
}

fn unhex(text: &str) -> Result<Bytes, BadScanToken> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(BadScanToken);
    }
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.chunks(2).map(|pair| byte(pair).ok_or(BadScanToken)).collect::<Result<Vec<u8>, _>>().map(Bytes::from)
}

/// A scan under way: rows in order, fetched ahead by a task of its own that ends with it. See [`ScanOptions`] for what
/// it holds at most; a row that is kept keeps its page in memory.
#[derive(Debug)]
pub struct Scan {
    view: Arc<ViewInner>,
    pages: mpsc::Receiver<Result<Page, Error>>,
    page: Option<Page>,
    /// What is left behind the last row given out.
    rest: PageRequest,
    left: Option<u64>,
    fetcher: AbortHandle,
}

impl Drop for Scan {
    fn drop(&mut self) {
        // Drops its read, which withdraws every copy.
        self.fetcher.abort();
    }
}

impl Scan {
    /// The next row; `None` behind the last one.
    ///
    /// # Errors
    /// See [`Error::caller_move`]. The scan is over then; [`Scan::token`] says where to go on.
    ///
    /// # Cancel safety
    /// Safe: no row is lost.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        loop {
            if let Some(page) = &mut self.page {
                if let Some(row) = page.next_row().map_err(bad_page)? {
                    self.rest = self.rest.after(&row.key);
                    self.left = self.left.map(|left| left.saturating_sub(1));
                    return Ok(Some(row));
                }
                // What was looked at behind the last row had expired.
                if let Some(last) = page.last() {
                    self.rest = self.rest.after(last);
                }
                self.page = None;
            }
            match self.pages.recv().await {
                Some(page) => self.page = Some(page?),
                None => return Ok(None),
            }
        }
    }

    /// Where this scan goes on behind the row given out last; [`Client::resume`](crate::Client::resume) takes it, also
    /// in another process.
    pub fn token(&self) -> ScanToken {
        ScanToken {
            seen: self.view.token_of(self.view.seen()),
            range: ScanRange { lo: self.rest.lo.clone(), hi: self.rest.hi.clone() },
            reverse: self.rest.reverse,
            keys_only: self.rest.columns == Columns::Keys,
            left: self.left,
        }
    }
}

/// Begins a scan.
pub(crate) fn scan(view: &Arc<ViewInner>, range: &ScanRange, options: ScanOptions) -> Result<Scan, Error> {
    let columns = if options.keys_only { Columns::Keys } else { Columns::All };
    let page = range.page(columns, options.page_rows, options.page_bytes);
    if options.limit == Some(0) {
        return Err(over("the limit of a scan must be at least 1, 0 were asked for".to_owned()));
    }
    start(view, PageRequest { reverse: options.reverse, ..page }, options)
}

/// Goes on with a scan.
pub(crate) fn resume(view: &Arc<ViewInner>, token: ScanToken, options: ScanOptions) -> Result<Scan, Error> {
    view.saw(view.check_token(token.seen)?);
    let columns = if token.keys_only { Columns::Keys } else { Columns::All };
    let page = token.range.page(columns, options.page_rows, options.page_bytes);
    let options = ScanOptions { limit: token.left, ..options };
    start(view, PageRequest { reverse: token.reverse, ..page }, options)
}

fn start(view: &Arc<ViewInner>, page: PageRequest, options: ScanOptions) -> Result<Scan, Error> {
    page.check().map_err(|failure| Error::new(Cause::Call(failure), Vec::new(), Duration::ZERO))?;
    check_policy(&options.read)?;
    deadline_of(options.read.deadline, PAGE_DEADLINE)?;
    if !(1..=16).contains(&options.pages_ahead) {
        return Err(over(format!("pages ahead of a scan must be 1 to 16, {} were asked for", options.pages_ahead)));
    }
    let (sender, pages) = mpsc::channel(usize::from(options.pages_ahead));
    let fetch = fetch(view.clone(), page.clone(), options.limit, paged(options.read), sender);
    let fetcher = tokio::spawn(fetch).abort_handle();
    Ok(Scan { view: view.clone(), pages, page: None, rest: page, left: options.limit, fetcher })
}

/// Fetches pages for as long as there is room for one; an error is the last thing sent.
async fn fetch(
    view: Arc<ViewInner>,
    mut rest: PageRequest,
    mut left: Option<u64>,
    options: ReadOptions,
    pages: mpsc::Sender<Result<Page, Error>>,
) {
    let rows_max = rest.rows_max;
    while left != Some(0) {
        let Ok(room) = pages.reserve().await else { return };
        rest.rows_max = left.map_or(rows_max, |left| rows_max.min(u32::try_from(left).unwrap_or(u32::MAX)));
        let page = match read_page(&view, &rest, options.clone()).await {
            Ok(page) => page,
            Err(error) => return room.send(Err(error)),
        };
        left = left.map(|left| left.saturating_sub(u64::from(page.rows())));
        let next = page.last().filter(|_| page.more()).map(|last| rest.after(last));
        room.send(Ok(page));
        match next {
            Some(next) => rest = next,
            None => return,
        }
    }
}

/// How many keys lie in a range: counted by the nodes, page by page.
pub(crate) async fn count(view: &Arc<ViewInner>, range: &ScanRange, options: ReadOptions) -> Result<u64, Error> {
    let mut rest = range.page(Columns::Count, SCAN_PAGE_ROWS_MAX as u32, SCAN_PAGE_BYTES_MAX as u32);
    rest.check().map_err(|failure| Error::new(Cause::Call(failure), Vec::new(), Duration::ZERO))?;
    check_policy(&options)?;
    let (options, mut count) = (paged(options), 0);
    loop {
        let page = read_page(view, &rest, options.clone()).await?;
        count += u64::from(page.rows());
        match page.last().filter(|_| page.more()) {
            Some(last) => rest = rest.after(last),
            None => return Ok(count),
        }
    }
}

/// Whether a key is present; its value does not travel.
pub(crate) async fn exists(view: &Arc<ViewInner>, key: Bytes, options: ReadOptions) -> Result<bool, Error> {
    check_key(&key)?;
    check_policy(&options)?;
    let page = ScanRange::key(key).page(Columns::Count, 1, 1);
    Ok(read_page(view, &page, options).await?.rows() == 1)
}

async fn read_page(view: &Arc<ViewInner>, page: &PageRequest, options: ReadOptions) -> Result<Page, Error> {
    let what = ReadOperation::Scan(Box::new(page.clone()));
    let (operation, began) = (Operation::Scan, clock::now());
    let answer = read(view, Whole { what, options: &options, operation, call: None, began }).await?;
    Page::decode(answer.payload, page.columns).map_err(bad_page)
}

/// A page has neither hedge nor rescue: a call that names a policy with one is told so. What the client's settings say
/// for all operations goes without them.
fn check_policy(options: &ReadOptions) -> Result<(), Error> {
    match options.policy {
        Some(policy) if policy != policy.without_extras() => {
            let right = policy.without_extras();
            let message = format!(
                "`{policy}` would have no effect: a page of a scan takes as long as it has rows, and no hedge or rescue would know its time; say `{right}`"
            );
            Err(Error::call(ErrorCode::Unsupported, message))
        }
        _ => Ok(()),
    }
}

fn paged(options: ReadOptions) -> ReadOptions {
    ReadOptions {
        deadline: options.deadline.or(Some(PAGE_DEADLINE)),
        class: options.class.or(Some(Class::Batch)),
        ..options
    }
}

fn over(message: String) -> Error {
    Error::call(ErrorCode::OverLimit, message)
}

fn bad_page(bad: tiedkv_protocol::scan::BadPage) -> Error {
    let failure = Failure::new(ErrorCode::Internal, bad.to_string());
    Error::new(Cause::Node(failure), Vec::new(), Duration::ZERO)
}

#[cfg(test)]
#[path = "scan_test.rs"]
mod tests;
