//! Every package that is built has a licence from a short list.

use crate::Result;
use crate::interop;

/// What may be built into a program under MIT or Apache 2.0 without more than a notice.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    // OSI-approved and permissive: the licence of libpq.
    "PostgreSQL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks the packages of all features on this platform.
pub(crate) fn run() -> Result<()> {
    println!("\nlicences");
    let metadata = interop::metadata()?;
    let mut refused = Vec::new();
    for package in &metadata.packages {
        let allowed = match &package.license {
            Some(licence) => is_allowed(licence),
            None => false,
        };
        if !allowed {
            let licence = package.license.as_deref().unwrap_or("none");
            refused.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    if refused.is_empty() {
        println!(
            "{} packages, all with a licence from the list",
            metadata.packages.len()
        );
        return Ok(());
    }
    Err(format!("not on the list of licences:\n{}", refused.join("\n")).into())
}

/// Whether the terms of an SPDX expression can be met with licences from the list.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words: Vec<&str> = spaced.split_whitespace().collect();
    words.reverse();
    any(&mut words) == Some(true) && words.is_empty()
}

/// `all { OR all }`; the words are in reverse. `None` if that is not what they are.
fn any(words: &mut Vec<&str>) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.pop_if(|word| *word == "OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

/// `one { AND one }`
fn all(words: &mut Vec<&str>) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.pop_if(|word| *word == "AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut Vec<&str>) -> Option<bool> {
    let word = words.pop()?;
    if word == "(" {
        let allowed = any(words)?;
        return (words.pop()? == ")").then_some(allowed);
    }
    if words.pop_if(|word| *word == "WITH").is_some() {
        let exception = words.pop()?;
        return Some(ALLOWED.contains(&&*format!("{word} WITH {exception}")));
    }
    Some(ALLOWED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn one_licence_of_a_choice_is_enough_and_all_of_a_sum_are_needed() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "MIT OR GPL-3.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND GPL-3.0",
            "Apache-2.0 WITH Unknown-exception",
            "MIT OR",
            "(MIT",
            "MIT)",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
