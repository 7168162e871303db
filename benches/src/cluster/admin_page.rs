//! Fetches a page of a node's admin port: one HTTP/1.1 GET over loopback, with a deadline. No client library.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest page read, bytes.
const PAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// An answer of the admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// What follows the header.
    pub body: String,
}

/// Fetches `path` (with its leading `/`) within `deadline`.
///
/// # Errors
/// When the port does not answer in time or answers something else than HTTP.
///
/// # Cancel safety
/// Safe: dropping it closes the connection.
pub async fn fetch(address: SocketAddr, path: &str, deadline: Duration) -> io::Result<Page> {
    let page = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(PAGE_BYTES_MAX).read_to_end(&mut answer).await?;
        parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::Error::other("the answer is not HTTP"))
    };
    tokio::time::timeout(deadline, page).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn parse(answer: &str) -> Option<Page> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Page { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_status_and_body() {
        let page = parse("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nraft: no leader\n").unwrap();
        assert_eq!(page, Page { status: 503, body: "raft: no leader\n".to_owned() });
        assert_eq!(parse("nonsense"), None);
    }

    #[tokio::test]
    async fn a_silent_port_is_an_error_in_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let error = fetch(address, "/readyz", Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
