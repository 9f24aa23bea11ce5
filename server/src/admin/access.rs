//! Who may ask what.
//!
//! With tokens, whoever shows one. Without, every program of this machine, but no page in a
//! browser of this machine: a page from elsewhere can send requests to a loopback address, and
//! can make its own name lead there.

use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};

use super::problem::Problem;
use super::token::{self, AdminToken};
use crate::swap::Swap;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: Swap<[AdminToken]>,
    open_probes: bool,
}

/// Somebody who may do everything, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operator {
    /// The name of the token, or `None` where none is needed.
    pub(super) token: Option<String>,
}

impl Access {
    pub(super) fn new(tokens: Vec<AdminToken>, open_probes: bool) -> Self {
        Self {
            tokens: Swap::new(tokens),
            open_probes,
        }
    }

    /// Whether probes need no token.
    pub(super) fn lets_probes_in(&self) -> bool {
        self.open_probes
    }

    /// Who sent a request with these headers.
    pub(super) fn operator(&self, headers: &HeaderMap) -> Result<Operator, Problem> {
        if headers.contains_key(ORIGIN) {
            return Err(Problem::FORBIDDEN.because("requests of web pages are refused"));
        }
        let tokens = self.tokens();
        if tokens.is_empty() {
            return match host_is_this_machine(headers) {
                true => Ok(Operator { token: None }),
                false => Err(Problem::FORBIDDEN
                    .because("without an admin token the host must be an address or localhost")),
            };
        }
        let presented = bearer(headers).ok_or(Problem::UNAUTHORIZED)?;
        let presented = token::hash(presented);
        // All are compared, whichever fits.
        let mut fits = None;
        for token in tokens.iter() {
            if bool::from(token.has(&presented)) {
                fits = Some(token);
            }
        }
        let fits = fits.ok_or(Problem::UNAUTHORIZED)?;
        Ok(Operator {
            token: Some(fits.name().to_owned()),
        })
    }

    pub(crate) fn tokens(&self) -> Arc<[AdminToken]> {
        self.tokens.get()
    }

    /// Lets in who shows one of these from now on.
    pub(crate) fn replace(&self, tokens: &[AdminToken]) {
        self.tokens.set(tokens);
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else {
        return None;
    };
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
    is_bearer.then(|| token.trim_ascii())
}

/// A name that somebody else's name service answers for is not this machine.
fn host_is_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address = address.unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn without_a_token_only_this_machine_is_meant() {
        let access = Access::new(Vec::new(), false);
        let hosts = [
            "127.0.0.1:80",
            "127.0.0.1",
            "localhost",
            "LOCALHOST:1",
            "[::1]:80",
            "[::1]",
        ];
        for host in hosts {
            let operator = access.operator(&headers(&[(HOST, host)]));
            assert_eq!(operator, Ok(Operator { token: None }), "{host}");
        }
        for host in [
            "example.org",
            "localhost.example.org:80",
            "",
            "127.0.0.1.example.org",
        ] {
            let refused = access.operator(&headers(&[(HOST, host)])).unwrap_err();
            assert_eq!(refused.status, 403, "{host}");
        }
        assert!(access.operator(&headers(&[])).is_err());
        let page = headers(&[(HOST, "localhost"), (ORIGIN, "http://localhost")]);
        assert_eq!(access.operator(&page).unwrap_err().status, 403);
    }

    #[test]
    fn each_of_the_tokens_lets_in_and_nothing_else_does() {
        let tokens = [("old", "0123456789abcdef"), ("new", "fedcba9876543210")];
        let tokens = tokens.map(|(name, text)| AdminToken::from_file_content(name, text).unwrap());
        let access = Access::new(tokens.into(), false);
        let with = |value: &str| access.operator(&headers(&[(AUTHORIZATION, value)]));
        assert_eq!(
            with("Bearer 0123456789abcdef").unwrap().token.unwrap(),
            "old"
        );
        assert_eq!(
            with("bearer  fedcba9876543210").unwrap().token.unwrap(),
            "new"
        );
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "Bearer0123456789abcdef",
        ] {
            assert_eq!(with(wrong).unwrap_err().status, 401, "{wrong:?}");
        }
        let right = "Bearer 0123456789abcdef";
        let twice = headers(&[(AUTHORIZATION, right), (AUTHORIZATION, right)]);
        assert_eq!(access.operator(&twice).unwrap_err().status, 401);
        assert_eq!(
            access
                .operator(&headers(&[(HOST, "localhost")]))
                .unwrap_err()
                .status,
            401
        );
        let page = headers(&[(AUTHORIZATION, right), (ORIGIN, "null")]);
        assert_eq!(access.operator(&page).unwrap_err().status, 403);
    }
}
