//! Requests to the admin listener, written by hand.

use std::net::SocketAddr;

use highwater_server::Server;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::within;

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The value of a header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().skip(1);
        let mut fields = lines.filter_map(|line| line.split_once(": "));
        let field = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.map_or("", |(_, value)| value)
    }

    /// The detail of a problem with this status.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        let body = self.json();
        assert_eq!(body["status"], status);
        assert_ne!(body["title"], "");
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// Sends a request on a connection of its own.
pub(crate) async fn send(server: &Server, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = connect(server).await;
    ask(&mut stream, method, path, headers).await
}

pub(crate) async fn connect(server: &Server) -> TcpStream {
    let address: SocketAddr = server.admin_addr().unwrap();
    within(TcpStream::connect(address)).await.unwrap()
}

pub(crate) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    path: &str,
    headers: &str,
) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    within(stream.write_all(request.as_bytes())).await.unwrap();
    read(stream, method == "HEAD").await.expect("an answer")
}

/// The next answer, or `None` if the connection ends.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin), head_only: bool) -> Option<Answer> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer {
        status,
        head,
        body: String::new(),
    };
    if !head_only {
        let length = answer.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        within(stream.read_exact(&mut body)).await.ok()?;
        answer.body = String::from_utf8(body).unwrap();
    }
    Some(answer)
}

/// The body of a GET that is answered with 200.
pub(crate) async fn get(server: &Server, path: &str) -> String {
    let answer = send(server, "GET", path, "").await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

pub(crate) async fn get_json(server: &Server, path: &str) -> Value {
    serde_json::from_str(&get(server, path).await).unwrap()
}

/// The value of one line of the metrics.
pub(crate) async fn metric(server: &Server, series: &str) -> f64 {
    let page = get(server, "/metrics").await;
    let mut lines = page.lines();
    let line = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no {series} in:\n{page}"));
    value.parse().unwrap()
}
