//! HTTP for operators on a port of its own: `/metrics`, `/livez`, `/readyz`, `/status`, `/slow`. Reads only, no
//! authentication: keep the port private. Connections and their lives are bounded.

use super::metrics;
use super::status::Observer;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections served at a time; more wait in the system's queue.
const CONNECTIONS_MAX: usize = 32;
/// Longest life of one connection: a client that dawdles over its request ends with it.
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(60);
/// Pause after the system gave no connection (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until dropped.
pub async fn serve(listener: TcpListener, observer: Arc<Observer>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => Bounded { listener, room: Arc::new(Semaphore::new(CONNECTIONS_MAX)) },
        Err(error) => {
            tracing::error!(%error, "admin HTTP cannot listen");
            return;
        }
    };
    let registry = Arc::new(metrics::registry(observer.clone()));
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(observer.clone()))
        .route("/status", get(status).with_state(observer.clone()))
        .route("/slow", get(slow).with_state(observer))
        .route("/metrics", get(scrape).with_state(registry));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "admin HTTP ended");
    }
}

/// One line per check; 503 if one does not hold.
async fn ready(State(observer): State<Arc<Observer>>) -> impl IntoResponse {
    let checks = observer.checks();
    let lines: String = checks
        .iter()
        .map(|check| match &check.outcome {
            Ok(()) => format!("ok {}\n", check.name),
            Err(reason) => format!("NOT {}: {reason}\n", check.name),
        })
        .collect();
    let all = checks.iter().all(|check| check.outcome.is_ok());
    (if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, lines)
}

async fn status(State(observer): State<Arc<Observer>>) -> impl IntoResponse {
    Json(observer.status())
}

async fn slow(State(observer): State<Arc<Observer>>) -> impl IntoResponse {
    Json(observer.path.slow_reads())
}

async fn scrape(State(registry): State<Arc<prometheus_client::registry::Registry>>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Accepts while there is room.
struct Bounded {
    listener: tokio::net::TcpListener,
    room: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Mortal;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Mortal, SocketAddr) {
        loop {
            let permit = self.room.clone().acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let end = Box::pin(sleep(CONNECTION_LIFE_MAX));
                    return (Mortal { stream, end, _permit: permit }, from);
                }
                Err(error) => {
                    tracing::debug!(%error, "admin HTTP: accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends by itself.
struct Mortal {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Mortal {
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Mortal {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Mortal {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.alive(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
