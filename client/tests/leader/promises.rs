//! `docs/leader-promises.md` names the tests that show each promise: they are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where tests of leader elections are, from the root of the repository.
const PLACES: [&str; 9] = [
    "client/src/leader/blocking",
    "client/src/leader/contract",
    "client/tests",
    "client/tests/contract",
    "client/tests/client",
    "client/tests/leader",
    "tests/tests/leader",
    "server/tests/admin",
    "examples",
];

/// The names of all functions in a folder and those in it, or only in it.
fn functions(folder: &Path, deep: bool, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && deep {
            functions(&path, deep, found);
        }
        if path.extension().is_some_and(|is| is == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| {
                let end = rest.find(|is: char| !is.is_ascii_alphanumeric() && is != '_')?;
                Some(rest[..end].to_owned())
            });
            found.extend(names);
        }
    }
}

/// The code in a page that is as long as the names of tests are.
fn named(page: &str, before: &str) -> BTreeSet<String> {
    let begin = format!("{before}`");
    let codes = page.split(&begin).skip(1);
    let codes = codes.filter_map(|rest| rest.split('`').next());
    let names = codes.filter(|code| {
        code.matches('_').count() >= 3 && !code.contains("::") && *code != "run_if_leader_result"
    });
    names.map(str::to_owned).collect()
}

#[test]
fn each_test_that_is_named_is_there_and_each_case_of_the_contract_is_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/leader-promises.md")).unwrap();
    let mut all = BTreeSet::new();
    for place in PLACES {
        functions(&root.join(place), place == "examples", &mut all);
    }
    let names = named(&page, "");
    let missing: Vec<_> = names.difference(&all).collect();
    assert!(names.len() > 80, "{}", names.len());
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
    let list = fs::read_to_string(root.join("client/src/leader/contract/mod.rs")).unwrap();
    let list = list.split("cases [$(#[$attribute])+] [$service]").nth(1);
    let list = list.and_then(|list| list.split('}').next()).unwrap();
    let cases: BTreeSet<_> = list.split_whitespace().map(str::to_owned).collect();
    let italic = named(&page, "*");
    assert_eq!(cases, italic, "cases of the contract, and those in italics");
    // No row is without a test.
    for row in page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("shown by"))
    {
        assert!(!named(row, "").is_empty(), "{row}");
    }
}
