//! What does not compile, and what is said then. Only messages of the attributes themselves are
//! compared: each of these files has no other fault.
//!
//! `TRYBUILD=overwrite cargo test -p highwater-client-macros` writes the messages anew.

#[test]
fn mistakes_are_told_where_they_stand() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
