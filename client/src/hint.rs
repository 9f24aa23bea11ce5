//! What most likely stands in the way of a connection, from what was seen of it.

use std::fmt;
use std::io::ErrorKind;

use crate::ConnectError;
use crate::setup::{SetupError, Stage, Target};

/// What to look at first when there is no connection.
///
/// A guess from the outside, in words for whoever runs the service; the technical cause is the
/// source of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectHint {
    /// The host's name has no address. Correct the name, or the name service.
    UnknownHost,
    /// The host is there, and no program listens on the port. Start the server, or correct the
    /// port.
    NothingListens,
    /// No packet came back. A wrong address, a firewall, or a host that is down.
    NetworkSilent,
    /// The connection opens, and the server says nothing to this client, which does not encrypt.
    /// So does a server that expects TLS: give it to [`Builder::tls`](crate::Builder::tls).
    SilentWithoutTls,
    /// The connection opens, and the server says nothing to the beginning of TLS. It may not
    /// speak it: leave [`Builder::tls`](crate::Builder::tls) out.
    SilentToTls,
    /// What answers does not speak TLS: leave [`Builder::tls`](crate::Builder::tls) out, or switch
    /// it on in the server.
    NoTls,
    /// The certificate of the server is not one of a trusted authority, for this name, and valid
    /// today. Correct the authority or the name.
    Certificate,
    /// Both ends speak TLS and cannot agree. The source says on what.
    TlsDisagreement,
    /// The server closes before it says hello: it is starting, full or shutting down. Without TLS
    /// at this end, it may also expect that.
    ClosedAtOnce,
    /// It said hello, and then fell silent or closed. It may be overloaded or shutting down.
    Interrupted,
    /// It answered against the protocol, or is not ready.
    Unsuitable,
    /// The function that opens connections ([`Builder::dialer`](crate::Builder::dialer)) panicked, or a
    /// stream that it gave. Correct it.
    Panicked,
}

impl fmt::Display for ConnectHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownHost => "the host is not known",
            Self::NothingListens => "nothing listens there",
            Self::NetworkSilent => "the network or the host does not answer",
            Self::SilentWithoutTls => {
                "it accepts and stays silent, as a server does that expects TLS"
            }
            Self::SilentToTls => {
                "it accepts and does not answer to TLS, as a server may do that has none"
            }
            Self::NoTls => "the other end does not speak TLS",
            Self::Certificate => "its certificate is not trusted for this name and time",
            Self::TlsDisagreement => "both ends speak TLS and do not agree",
            Self::ClosedAtOnce => {
                "it closes before its hello: starting, full, stopping, or expecting TLS"
            }
            Self::Interrupted => "it said hello and then nothing more",
            Self::Unsuitable => "what it answers is of no use",
            Self::Panicked => "the function that opens connections panicked",
        })
    }
}

/// For the caller of `connect`.
pub(crate) fn connect_error(target: &Target, error: &SetupError) -> ConnectError {
    match error {
        SetupError::Rejected => ConnectError::Unauthenticated,
        SetupError::Hello(error) => ConnectError::WrongServer(*error),
        SetupError::Tls(_) => ConnectError::Tls {
            address: target.address.clone(),
            hint: hint(error, target.tls.is_some()),
            source: error.to_io(),
        },
        _ => ConnectError::Unreachable {
            address: target.address.clone(),
            hint: hint(error, target.tls.is_some()),
            source: error.to_io(),
        },
    }
}

fn hint(error: &SetupError, tls: bool) -> ConnectHint {
    match error {
        SetupError::Unreachable(error, stage) => match (stage, error.kind()) {
            (Stage::Resolving, _) => ConnectHint::UnknownHost,
            (Stage::Connecting, ErrorKind::ConnectionRefused) => ConnectHint::NothingListens,
            (Stage::Connecting, _) => ConnectHint::NetworkSilent,
            (Stage::Encrypting, _) => ConnectHint::SilentToTls,
            (Stage::Greeting, _) => ConnectHint::ClosedAtOnce,
            (Stage::Entering, _) => ConnectHint::Interrupted,
        },
        SetupError::TimedOut(stage) => match stage {
            Stage::Resolving => ConnectHint::UnknownHost,
            Stage::Connecting => ConnectHint::NetworkSilent,
            Stage::Encrypting => ConnectHint::SilentToTls,
            Stage::Greeting if tls => ConnectHint::Interrupted,
            Stage::Greeting => ConnectHint::SilentWithoutTls,
            Stage::Entering => ConnectHint::Interrupted,
        },
        SetupError::Tls(error) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            match cause {
                Some(rustls::Error::InvalidMessage(_)) => ConnectHint::NoTls,
                Some(rustls::Error::InvalidCertificate(_)) => ConnectHint::Certificate,
                _ => ConnectHint::TlsDisagreement,
            }
        }
        SetupError::ClosedOnProbe => ConnectHint::Interrupted,
        SetupError::Panicked(_) => ConnectHint::Panicked,
        SetupError::Hello(_)
        | SetupError::Rejected
        | SetupError::NotReady(_)
        | SetupError::Frame(_)
        | SetupError::Misfit => ConnectHint::Unsuitable,
    }
}
