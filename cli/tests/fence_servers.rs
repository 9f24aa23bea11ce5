//! `highwater fence` on the servers named by HIGHWATER_TEST_POSTGRES_URL, HIGHWATER_TEST_MYSQL_URL
//! and HIGHWATER_TEST_MARIADB_URL; a missing one is a failure unless it is to be skipped.

mod walk;

fn on(name: &str) {
    if let Ok(reason) = std::env::var(format!("HIGHWATER_TEST_SKIP_{name}")) {
        println!("{name} is left out: {reason}");
        return;
    }
    let variable = format!("HIGHWATER_TEST_{name}_URL");
    let url = std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set"));
    let operator = walk::Operator::new(url);
    walk::every_command(&operator);
}

#[test]
fn every_command_on_postgres() {
    on("POSTGRES");
}

#[test]
fn every_command_on_mysql() {
    on("MYSQL");
}

#[test]
fn every_command_on_mariadb() {
    on("MARIADB");
}
