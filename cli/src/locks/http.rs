//! Requests to the admin listener.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use highwater_client::TlsError;

use crate::access::{self, Tls, TokenError};
use crate::words::printable;

/// The admin listener, and how to be let in.
///
/// Its token can also come from the environment variable HIGHWATER_ADMIN_TOKEN.
#[derive(Args)]
pub(crate) struct Admin {
    /// The admin listener of the lock server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "HIGHWATER_ADMIN",
        default_value = "127.0.0.1:5226"
    )]
    admin: String,
    /// A file that holds the admin token.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
}

impl Admin {
    pub(super) async fn get(&self, path: &str) -> Result<Value, HttpError> {
        self.request(Method::GET, path).await
    }

    pub(super) async fn post(&self, path: &str) -> Result<Value, HttpError> {
        self.request(Method::POST, path).await
    }

    async fn request(&self, method: Method, path: &str) -> Result<Value, HttpError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.admin);
        if let Some(token) = self.token()? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).map_err(HttpError::Request)?;
        let connected = TcpStream::connect(&self.admin).await;
        let stream = connected.map_err(|source| HttpError::Connect {
            admin: self.admin.clone(),
            source,
        })?;
        match self.tls.config()? {
            None => exchange(stream, request).await,
            Some(tls) => {
                let tls = TlsConnector::from(tls.config());
                let stream = tls.connect(self.server_name()?, stream).await;
                exchange(stream.map_err(HttpError::Handshake)?, request).await
            }
        }
    }

    /// The name that the certificate must have.
    fn server_name(&self) -> Result<ServerName<'static>, HttpError> {
        let host = self.admin.rsplit_once(':');
        let host = host.map_or(&*self.admin, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.tls.name().unwrap_or(host);
        let known = ServerName::try_from(name.to_owned());
        known.map_err(|_| HttpError::Name(name.to_owned()))
    }

    fn token(&self) -> Result<Option<HeaderValue>, HttpError> {
        let file = self.admin_token_file.as_deref();
        let Some((_, content)) = access::token("--admin-token-file", file, VARIABLE)? else {
            return Ok(None);
        };
        let header = [b"Bearer ", content.trim_ascii()].concat();
        let mut header = HeaderValue::from_bytes(&header).map_err(|_| HttpError::Token)?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Value, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_BYTES)
        .collect()
        .await;
    let body = body.map_err(HttpError::Body)?.to_bytes();
    connection.abort();
    let value = serde_json::from_slice(&body);
    if status.is_success() {
        return value.map_err(HttpError::NotJson);
    }
    let word = |name| {
        let value: &Value = value.as_ref().ok()?;
        value[name].as_str().map(printable)
    };
    Err(HttpError::Refused {
        status,
        title: word("title").unwrap_or_else(|| "no reason".to_owned()),
        detail: word("detail").unwrap_or_default(),
    })
}

/// A key or prefix as a part of a path or query: everything but letters and digits is escaped.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("a string");
        }
    }
    encoded
}

/// Why the admin listener gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error(transparent)]
    NoToken(#[from] TokenError),
    #[error("an admin token is 16 to 1024 visible ASCII characters")]
    Token,
    #[error("TLS cannot be turned on")]
    Tls(#[from] TlsError),
    #[error("{0} is no name that a certificate can have")]
    Name(String),
    #[error("no connection to the admin listener at {admin} (serve --admin turns it on)")]
    Connect {
        admin: String,
        source: std::io::Error,
    },
    #[error("the certificate of the admin listener was not accepted")]
    Handshake(#[source] std::io::Error),
    #[error("the admin listener answered {}: {title}: {detail}", status.as_u16())]
    Refused {
        status: StatusCode,
        title: String,
        detail: String,
    },
    #[error("the admin listener cannot be spoken to")]
    Http(#[from] hyper::Error),
    #[error("the answer is too long or does not end")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the address of the admin listener is not one")]
    Request(#[source] hyper::http::Error),
}

const VARIABLE: &str = "HIGHWATER_ADMIN_TOKEN";
/// More than a page of the longest keys.
const MOST_BYTES: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_byte_by_byte() {
        assert_eq!(encode("stock/apple 1?é"), "stock%2Fapple%201%3F%C3%A9");
    }
}
