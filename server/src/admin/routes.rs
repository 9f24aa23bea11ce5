//! Which request is answered by what.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;

use super::access::Operator;
use super::connection::Site;
use super::problem::Problem;
use super::target::{decode, parameters};
use super::{leaders, locks};
use crate::metrics::{self, Page};

/// An answer, whole: nothing is made while it is sent.
pub(super) type Answer = Response<Full<Bytes>>;

/// What a path leads to.
enum Route {
    Health,
    Readiness,
    Metrics,
    Locks,
    Leaders,
    /// One lock; the key is still encoded.
    Lock(String),
    Release(String),
}

/// Answers one request.
pub(super) async fn answer(
    site: &Arc<Site>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Answer {
    site.shared.traffic.admin_requests.add();
    let mut answer = match handle(site, peer, request).await {
        Ok(answer) => answer,
        Err(problem) => {
            if problem.status == 401 || problem.status == 403 {
                site.shared.traffic.admin_refused.add();
                site.complain(peer, &problem.title());
            }
            problem.answer()
        }
    };
    let no_store = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(CACHE_CONTROL, no_store);
    answer
}

async fn handle(
    site: &Arc<Site>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let route = route(head.uri.path());
    let is_probe = matches!(route, Some(Route::Health | Route::Readiness));
    let operator = match is_probe && site.access.lets_probes_in() {
        true => Operator { token: None },
        false => site.access.operator(&head.headers)?,
    };
    let route =
        route.ok_or(Problem::NOT_FOUND.because("see the documentation for what there is"))?;
    check_method(&route, &head.method)?;
    discard(site, body).await?;
    if site.shared.desk.is_broken() {
        return match route {
            Route::Health | Route::Readiness => {
                Ok(state(StatusCode::SERVICE_UNAVAILABLE, "failed"))
            }
            _ => Err(Problem::UNAVAILABLE.because("the server has failed and ends; see its log")),
        };
    }
    match route {
        Route::Health => Ok(state(StatusCode::OK, "healthy")),
        Route::Readiness => Ok(readiness(site)),
        Route::Metrics => Ok(page(site)),
        Route::Leaders => leaders::list(site, &query(&head)?).await,
        Route::Locks => locks::list(site, &query(&head)?).await,
        Route::Lock(key) => locks::show(site, &decode(&key)?, &query(&head)?),
        Route::Release(key) => locks::release(site, peer, &operator, &decode(&key)?).await,
    }
}

fn route(path: &str) -> Option<Route> {
    Some(match path {
        "/healthz" => Route::Health,
        "/readyz" => Route::Readiness,
        "/metrics" => Route::Metrics,
        "/v1/leaders" => Route::Leaders,
        "/v1/locks" => Route::Locks,
        _ => {
            let rest = path.strip_prefix("/v1/locks/")?;
            match rest.split_once('/') {
                None if !rest.is_empty() => Route::Lock(rest.to_owned()),
                Some((key, "release")) if !key.is_empty() => Route::Release(key.to_owned()),
                _ => return None,
            }
        }
    })
}

fn check_method(route: &Route, method: &Method) -> Result<(), Problem> {
    match route {
        Route::Release(_) if method == Method::POST => Ok(()),
        Route::Release(_) => Err(Problem::allowing("POST")),
        _ if method == Method::GET || method == Method::HEAD => Ok(()),
        _ => Err(Problem::allowing("GET, HEAD")),
    }
}

/// Reads a body, which means nothing here, so that the connection can go on.
async fn discard(site: &Site, body: Incoming) -> Result<(), Problem> {
    if body.is_end_stream() {
        return Ok(());
    }
    let body = Limited::new(body, MOST_BODY_BYTES).collect();
    match timeout(site.limits.request_time, body).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(Problem::TOO_LARGE),
    }
}

fn query(head: &Parts) -> Result<Vec<(String, String)>, Problem> {
    parameters(head.uri.query())
}

fn readiness(site: &Site) -> Answer {
    let readiness = site.shared.readiness();
    let status = match readiness.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    state(status, &readiness.to_string())
}

fn page(site: &Site) -> Answer {
    let mut answer = Response::new(metrics::page(&site.shared).into());
    let kind = HeaderValue::from_static(Page::MEDIA_TYPE);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

#[derive(serde::Serialize)]
struct State<'a> {
    status: &'a str,
}

fn state(code: StatusCode, status: &str) -> Answer {
    let mut answer = json(&State { status });
    *answer.status_mut() = code;
    answer
}

/// A value as the body of an answer.
pub(super) fn json(value: &impl serde::Serialize) -> Answer {
    let body = serde_json::to_vec(value).expect("text, numbers and lists are JSON");
    let mut answer = Response::new(body.into());
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

const MOST_BODY_BYTES: usize = 4 * 1024;
