//! One admin connection from accept to close.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::AdminLimits;
use super::access::Access;
use super::patience::Patient;
use super::routes;
use crate::connection::Shared;
use crate::socket;
use crate::swap::Swap;

/// What all connections of an admin listener share.
pub(crate) struct Site {
    pub(super) shared: Arc<Shared>,
    pub(crate) access: Access,
    pub(crate) tls: Option<Swap<ServerConfig>>,
    pub(super) limits: AdminLimits,
}

/// Serves an accepted connection until it ends.
pub(super) async fn serve(site: Arc<Site>, tcp: TcpStream, peer: SocketAddr) {
    let _open = site.shared.traffic.admin_open.hold();
    socket::configure(&tcp, site.limits.stall_time);
    let Some(tls) = &site.tls else {
        return talk(&site, tcp, peer).await;
    };
    match timeout(
        first_time(&site.limits),
        TlsAcceptor::from(tls.get()).accept(tcp),
    )
    .await
    {
        Ok(Ok(stream)) => talk(&site, stream, peer).await,
        Ok(Err(error)) => site.complain(peer, &error),
        Err(_) => site.complain(peer, &"TLS was not agreed on in time"),
    }
}

async fn talk(site: &Arc<Site>, stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr) {
    let limits = &site.limits;
    let stream = TokioIo::new(Patient::new(stream, limits.stall_time));
    let asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        let site = Arc::clone(site);
        async move { Ok::<_, Infallible>(routes::answer(&site, peer, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request_time)
        .max_buf_size(MOST_BUFFERED_BYTES)
        .max_headers(MOST_HEADERS)
        .serve_connection(stream, service);
    tokio::pin!(connection);
    let silent = async {
        sleep(first_time(limits)).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silent => {
            site.complain(peer, &"no request came in time");
            Ok(())
        }
        () = sleep(limits.connection_time) => {
            connection.as_mut().graceful_shutdown();
            let last = at_least_a_moment(limits.stall_time);
            timeout(last, connection).await.unwrap_or(Ok(()))
        }
    };
    match ended {
        Ok(()) => {}
        // It is in the nature of networks, and of clients that wait for nothing.
        Err(error) if !error.is_parse() => {
            tracing::debug!(%peer, reason = %error, "admin connection ended");
        }
        Err(error) => site.complain(peer, &error),
    }
}

/// Until its first request nobody knows whether a peer may ask, and it holds a place.
fn first_time(limits: &AdminLimits) -> Duration {
    limits.request_time.min(FIRST_REQUEST_TIME)
}

/// A zero here would cut off an answer that is ready.
fn at_least_a_moment(span: Duration) -> Duration {
    span.max(Duration::from_millis(100))
}

/// For the TLS handshake, and for the head of the first request after it.
const FIRST_REQUEST_TIME: Duration = Duration::from_secs(5);
/// For the head of a request; a longer one is refused.
const MOST_BUFFERED_BYTES: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
