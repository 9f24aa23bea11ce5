//! Errors as the body of an answer, in the form of RFC 9457.

use std::borrow::Cow;

use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};

use super::routes::Answer;

/// An answer that says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: u16,
    title: &'static str,
    detail: Cow<'static, str>,
    allow: Option<&'static str>,
    /// The slot of the node to ask instead.
    leader: Option<u8>,
}

#[derive(serde::Serialize)]
struct Body<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u8>,
}

impl Problem {
    pub(super) const BAD_REQUEST: Self = Self::new(400, "bad request", "");
    pub(super) const UNAUTHORIZED: Self = Self::new(
        401,
        "no admin token",
        "send `Authorization: Bearer` with a token of this server's admin listener",
    );
    pub(super) const FORBIDDEN: Self = Self::new(403, "not allowed", "");
    pub(super) const NOT_FOUND: Self = Self::new(404, "nothing here", "");
    pub(super) const METHOD: Self = Self::new(405, "wrong method", "");
    pub(super) const TOO_LARGE: Self = Self::new(
        413,
        "body too large or too slow",
        "no request here needs a body",
    );
    /// It was asked of the log, which gave no answer in time.
    pub(super) const UNKNOWN: Self = Self::new(504, "nobody knows whether it was done", "");
    pub(super) const UNAVAILABLE: Self = Self::new(503, "not possible now", "");

    const fn new(status: u16, title: &'static str, detail: &'static str) -> Self {
        Self {
            status,
            title,
            detail: Cow::Borrowed(detail),
            allow: None,
            leader: None,
        }
    }

    /// What is wrong, in short.
    pub(super) fn title(&self) -> &'static str {
        self.title
    }

    pub(super) fn because(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(super) fn allowing(method: &'static str) -> Self {
        let mut problem = Self::METHOD.because(format!("only {method} is possible here"));
        problem.allow = Some(method);
        problem
    }

    /// Only the leader of the cluster does this, and that is the node of this slot.
    pub(super) fn elsewhere(leader: u8) -> Self {
        let text = format!("the node of slot {leader} leads: ask its admin listener");
        let mut problem = Self::new(421, "this node does not lead", "").because(text);
        problem.leader = Some(leader);
        problem
    }

    pub(super) fn answer(&self) -> Answer {
        let body = Body {
            title: self.title,
            status: self.status,
            detail: &self.detail,
            leader: self.leader,
        };
        let body = serde_json::to_vec(&body).expect("words and a number are JSON");
        let mut response = Response::new(body.into());
        *response.status_mut() =
            StatusCode::from_u16(self.status).expect("the statuses of this file are valid");
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        if let Some(method) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(method));
        }
        if self.status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Who may not ask keeps no place from those who may.
        if matches!(self.status, 401 | 403 | 413) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
