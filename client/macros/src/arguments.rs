//! What stands in the parentheses of an attribute, checked by the rules of `LeaderOptions`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Token};

use crate::{Faults, time, value};

/// Which of the two attributes it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    Group,
}

impl Kind {
    pub(crate) fn attribute(self) -> &'static str {
        match self {
            Self::Single => "#[leader]",
            Self::Group => "#[leader_group]",
        }
    }

    /// What its arguments are called.
    fn arguments(self) -> String {
        let names = "`name`, `elector`, `context`, `wait`, `lease`, `min_lease`, `auto_extend`, \
                     `on_loss`, `on_failure`";
        match self {
            Self::Single => names.to_owned(),
            Self::Group => format!("{names}, `slots`"),
        }
    }
}

/// All arguments, with the defaults of `LeaderOptions` for those that are missing.
pub(crate) struct Arguments {
    pub(crate) name: Option<LitStr>,
    pub(crate) elector: Option<Expr>,
    pub(crate) context: Option<Ident>,
    pub(crate) wait: Time,
    pub(crate) lease: Time,
    pub(crate) min_lease: Time,
    pub(crate) auto_extend: bool,
    pub(crate) slots: u32,
    /// The variant of `LossPolicy`.
    pub(crate) on_loss: Ident,
    /// The variant of `FailurePolicy`.
    pub(crate) on_failure: Ident,
}

/// A duration, and where it stands if it does.
pub(crate) struct Time {
    pub(crate) duration: Duration,
    place: Option<Expr>,
}

impl Time {
    fn default_of(seconds: u64) -> Self {
        Self {
            duration: Duration::from_secs(seconds),
            place: None,
        }
    }

    fn read(value: Expr, faults: &mut Faults) -> Option<Self> {
        let text = match &value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => text.value(),
            other => {
                faults.at(other, format!("a duration is a text: {}", time::FORMS));
                return None;
            }
        };
        match time::parse(&text) {
            Ok(duration) => Some(Self {
                duration,
                place: Some(value),
            }),
            Err(fault) => {
                faults.at(value, fault);
                None
            }
        }
    }
}

impl Arguments {
    /// Reads all of them; what is wrong has its default.
    pub(crate) fn read(kind: Kind, tokens: TokenStream, faults: &mut Faults) -> Self {
        let mut arguments = Self {
            name: None,
            elector: None,
            context: None,
            wait: Time::default_of(5),
            lease: Time::default_of(60),
            min_lease: Time::default_of(0),
            auto_extend: false,
            slots: 2,
            on_loss: Ident::new("Cancel", Span::call_site()),
            on_failure: Ident::new("Error", Span::call_site()),
        };
        let mut times_are_good = true;
        let mut read = |input: ParseStream<'_>| {
            let mut seen: Vec<Ident> = Vec::new();
            while !input.is_empty() {
                let key = input.call(Ident::parse_any)?;
                let value = match input.parse::<Option<Token![=]>>()? {
                    Some(_) => Some(input.parse::<Expr>()?),
                    None => None,
                };
                if seen.contains(&key) {
                    faults.at(&key, format!("`{key}` is given twice"));
                } else {
                    times_are_good &= arguments.set(kind, &key, value, faults).is_some();
                    seen.push(key);
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        };
        let syntax = (|input: ParseStream<'_>| read(input)).parse2(tokens);
        let is_read = syntax.is_ok();
        faults.take(syntax);
        if is_read && times_are_good {
            arguments.compare(faults);
        }
        arguments
    }

    /// Takes one argument; `None` if it is wrong.
    fn set(
        &mut self,
        kind: Kind,
        key: &Ident,
        value: Option<Expr>,
        faults: &mut Faults,
    ) -> Option<()> {
        let word = key.to_string();
        let value = match (&*word, value) {
            ("auto_extend", None) => {
                self.auto_extend = true;
                return Some(());
            }
            (_, Some(value)) => value,
            (
                "name" | "elector" | "context" | "wait" | "lease" | "min_lease" | "slots"
                | "on_loss" | "on_failure",
                None,
            ) => {
                faults.at(key, format!("`{word}` needs a value: `{word} = …`"));
                return None;
            }
            (_, None) => {
                faults.at(key, unknown(kind, &word));
                return None;
            }
        };
        match &*word {
            "name" => self.name = Some(value::text(value, faults)?),
            "elector" => self.elector = Some(value),
            "context" => self.context = Some(value::word(&value, "ctx", faults)?),
            "wait" => self.wait = Time::read(value, faults)?,
            "lease" => self.lease = Time::read(value, faults)?,
            "min_lease" => self.min_lease = Time::read(value, faults)?,
            "auto_extend" => self.auto_extend = value::boolean(&value, faults)?,
            "slots" if kind == Kind::Group => self.slots = value::slots(&value, faults)?,
            "on_loss" => {
                let known = [("cancel", "Cancel"), ("notify", "Notify")];
                self.on_loss = value::choice(&value, &known, faults)?;
            }
            "on_failure" => {
                let known = [
                    ("error", "Error"),
                    ("skip", "Skip"),
                    ("fail_open", "FailOpen"),
                ];
                self.on_failure = value::choice(&value, &known, faults)?;
            }
            _ => {
                faults.at(key, unknown(kind, &word));
                return None;
            }
        }
        Some(())
    }

    /// The rules of `LeaderOptions`.
    fn compare(&self, faults: &mut Faults) {
        let mut rule = |is_broken: bool, time: &Time, message: String| {
            if is_broken {
                match &time.place {
                    Some(place) => faults.at(place, message),
                    None => faults.add(syn::Error::new(Span::call_site(), message)),
                }
            }
        };
        let (wait, lease, min_lease) = (&self.wait, &self.lease, &self.min_lease);
        let of_default = match lease.place {
            Some(_) => "",
            None => " (the default)",
        };
        rule(
            wait.duration > LONGEST,
            wait,
            format!("a wait is at most 1 h, and this is {:?}", wait.duration),
        );
        rule(
            lease.duration.is_zero(),
            lease,
            "a lease is above zero".to_owned(),
        );
        rule(
            lease.duration > LONGEST,
            lease,
            format!("a lease is at most 1 h, and this is {:?}", lease.duration),
        );
        rule(
            min_lease.duration > lease.duration,
            min_lease,
            format!(
                "the minimum lease of {:?} is longer than the lease of {:?}{of_default}",
                min_lease.duration, lease.duration
            ),
        );
        rule(
            self.auto_extend && !lease.duration.is_zero() && lease.duration < SHORTEST_KEPT,
            lease,
            format!(
                "with `auto_extend` a lease has at least 300 ms, and this is {:?}: it would end \
                 before a second try to extend it",
                lease.duration
            ),
        );
    }
}

fn unknown(kind: Kind, word: &str) -> String {
    match word {
        "slots" => "one leader has no slots: they belong to #[leader_group]".to_owned(),
        word => {
            let (attribute, known) = (kind.attribute(), kind.arguments());
            format!("{attribute} has no argument `{word}`; it has {known}")
        }
    }
}

/// The longest wait and lease, as in `LeaderOptions`.
const LONGEST: Duration = Duration::from_secs(3_600);
/// The shortest lease that is extended by itself, as in `LeaderOptions`.
const SHORTEST_KEPT: Duration = Duration::from_millis(300);
