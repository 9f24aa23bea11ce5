//! The whole table: every request against every state of a key, one cell each.
//!
//! A cell is run on a key of its own. It says what is answered; what becomes of the key follows
//! from the answer and is looked at with a query from another connection.

use highwater_server::Server;

use crate::wire::*;

/// The states of a key, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has it, and nobody waits.
    Free,
    /// Another connection has it.
    Held,
    /// The asking connection has it.
    Own,
    /// It was held, and the lease ran out.
    Ended,
    /// It was released with a minimum hold that is not over.
    Retained,
    /// Another connection has it together with another key.
    InSet,
    /// Nobody has it, but a set waits for it and for another key, which is held.
    Blocked,
    /// One of two slots is taken.
    Room,
    /// Two of two slots are taken.
    Full,
}

use State::{Blocked, Ended, Free, Full, Held, InSet, Own, Retained, Room};

const STATES: [State; 9] = [Free, Held, Own, Ended, Retained, InSet, Blocked, Room, Full];

/// The rows: what is asked, and its answer in each state.
///
/// An upper-case or lower-case letter is the opcode of the answer, `Q` no answer for now but a place
/// in the queue, a digit behind `E` the code, behind `c` the flag. A query's cell is state, waiters,
/// slots and taken slots.
const TABLE: &str = "
request             free  held  own   ended retained inset blocked room  full
A-try               A     T     T     A     T        T     T       E1    E1
A-wait              A     Q     Q     A     Q        Q     Q       E1    E1
A-wait,c            Ac0   Tc1   Tc1   Ac0   Tc1      Tc1   Tc1     E1c0  E1c0
S-try               S     T     T     S     T        T     T       E1    E1
S-wait              S     Q     Q     S     Q        Q     Q       E1    E1
S-wait,c            Sc0   Tc1   Tc1   Sc0   Tc1      Tc1   Tc1     E1c0  E1c0
a-try               a     T     T     a     T        T     T       E10   E10
a-wait              a     Q     Q     a     Q        Q     Q       E10   E10
a-wait,c            ac0   Tc1   Tc1   ac0   Tc1      Tc1   Tc1     E10c0 E10c0
a-set-try           a     T     T     a     T        T     T       E10   E10
a-set-wait          a     Q     Q     a     Q        Q     Q       E10   E10
n-try               n     E10   E10   n     E10      E10   E10     n     T
n-wait              n     E10   E10   n     E10      E10   E10     n     Q
n-wait,c            nc0   E10c0 E10c0 nc0   E10c0    E10c0 E10c0   nc0   Tc1
n-other-N           n     E10   E10   n     E10      E10   E10     E10   E10
R-this              N     R     R     N     R        E6    N       R     R
R-dead              N     N     N     N     N        N     N       N     N
R-elsewhere         E6    E6    E6    E6    E6       E6    E6      E6    E6
R-future            N     N     N     N     N        N     N       N     N
G-this              N     E6    E6    N     E6       G     N       E6    E6
G-dead              N     N     N     N     N        N     N       N     N
G-elsewhere         E6    E6    E6    E6    E6       E6    E6      E6    E6
G-future            N     N     N     N     N        N     N       N     N
x-this              N     x     x     N     N        E6    N       x     x
x-set-this          N     E6    E6    N     E6       x     N       E6    E6
x-dead              N     N     N     N     N        N     N       N     N
x-elsewhere         E6    E6    E6    E6    E6       E6    E6      E6    E6
x-future            N     N     N     N     N        N     N       N     N
h-this-now          N     h     h     N     h        E6    N       h     h
h-this-later        N     h     h     N     h        E6    N       h     h
h-set-this-now      N     E6    E6    N     E6       h     N       E6    E6
h-set-this-later    N     E6    E6    N     E6       h     N       E6    E6
h-dead              N     N     N     N     N        N     N       N     N
h-elsewhere         E6    E6    E6    E6    E6       E6    E6      E6    E6
h-future            N     N     N     N     N        N     N       N     N
q                   0000  1001  1001  0000  2001     1001  0100    1021  1022
c-unknown           c0    c0    c0    c0    c0       c0    c0      c0    c0
d                   d     d     d     d     d        d     d       d     d
";

/// The people of one cell.
struct Cell {
    server: Server,
    asker: Wire,
    holder: Wire,
    observer: Wire,
    /// A token whose lock was given back, and one that holds something else all the time.
    dead: u64,
    elsewhere: u64,
}

impl Cell {
    async fn new() -> Self {
        let server = server().await;
        let asker = Wire::open(&server).await;
        let mut holder = Wire::open(&server).await;
        let observer = Wire::open(&server).await;
        let dead = holder.take(1, "long-ago").await;
        holder
            .expect(&release(1, dead, "long-ago"), released(1))
            .await;
        let elsewhere = holder.take(1, "elsewhere").await;
        Self {
            server,
            asker,
            holder,
            observer,
            dead,
            elsewhere,
        }
    }

    /// Brings the key into the state, and gives the token that belongs to it.
    async fn bring(&mut self, state: State, key: &str, other: &str) -> u64 {
        let holder = &mut self.holder;
        match state {
            Free => self.dead,
            Held => holder.take(1, key).await,
            Own => self.asker.take(1, key).await,
            Ended => {
                let request = acquire_timed(1, 0, 1, &[key]);
                let (token, ..) = holder.ask(&request).await.timed('a', 1);
                let observer = &mut self.observer;
                while observer.ask(&query(1, 0, key)).await.status(1).taken > 0 {}
                token
            }
            Retained => {
                let token = holder.take(1, key).await;
                let retained = Answer::new('h', 1, &[]);
                let request = retain(1, token, 3_600_000, &[key]);
                holder.expect(&request, retained).await;
                token
            }
            InSet => {
                let request = acquire_set(1, 0, 60, &[key, other]);
                holder.ask(&request).await.token('S', 1)
            }
            Blocked => {
                holder.take(1, other).await;
                // It stays in the queue under an id that nothing else has.
                let id = 1 << 32 | self.server.counts().waiters as u64;
                holder.send(&acquire_set(id, 250, 60, &[key, other])).await;
                let observer = &mut self.observer;
                while observer.ask(&query(1, 0, key)).await.status(1).waiters == 0 {}
                self.dead
            }
            Room | Full => {
                let request = acquire_slot(1, 0, 60_000, 2, key);
                let (token, ..) = holder.ask(&request).await.timed('n', 1);
                if state == Full {
                    holder.ask(&request).await.timed('n', 1);
                }
                token
            }
        }
    }

    /// The frames of a row; the last one is the one that counts.
    fn requests(&self, row: &str, key: &str, other: &str, this: u64) -> Vec<Vec<u8>> {
        let set = [key, other];
        let (one, id) = ([key], 7);
        let (kind, rest) = row.split_once('-').unwrap_or((row, ""));
        if let Some(rest) = rest.strip_suffix(",c") {
            let acquires = self.requests(&format!("{kind}-{rest}"), key, other, this);
            return [acquires, vec![cancel(8, id)]].concat();
        }
        let (wait_s, wait_ms) = if rest.ends_with("wait") {
            (250, 250_000)
        } else {
            (0, 0)
        };
        let token = match rest.split('-').next() {
            Some("dead") => self.dead,
            Some("elsewhere") => self.elsewhere,
            Some("future") => u64::MAX,
            _ => this,
        };
        let several = rest.starts_with("set");
        let keys = if several { &set[..] } else { &one[..] };
        let minimum = if rest.ends_with("later") {
            3_600_000
        } else {
            0
        };
        let slots = if rest == "other-N" { 3 } else { 2 };
        vec![match kind {
            "A" => acquire(id, wait_s, 60, key),
            "S" => acquire_set(id, wait_s, 60, &set),
            "a" => acquire_timed(id, wait_ms, 60_000, keys),
            "n" => acquire_slot(id, wait_ms, 60_000, slots, key),
            "R" => release(id, token, key),
            "G" => release_set(id, token, &set),
            "x" => extend(id, token, 3_600_000, keys),
            "h" => retain(id, token, minimum, keys),
            "q" => query(id, 0, key),
            "c" => cancel(id, 99),
            "d" => domain(id),
            _ => panic!("there is no row {row}"),
        }]
    }

    async fn look(&mut self, key: &str) -> Status {
        self.observer.ask(&query(1, 0, key)).await.status(1)
    }

    /// Runs one cell and says what was answered, in the words of the table.
    async fn run(&mut self, row: &str, state: State, key: &str, other: &str) -> String {
        let this = self.bring(state, key, other).await;
        let before = self.look(key).await;
        let mut said = String::new();
        let mut token = None;
        for request in self.requests(row, key, other, this) {
            self.asker.send(&request).await;
        }
        // Whatever has no answer by then has none: requests are handled in order.
        self.asker.send(&domain(100)).await;
        loop {
            let answer = self.asker.answer().await;
            if answer.id == 100 {
                break;
            }
            assert!(matches!(answer.id, 7 | 8), "{answer:?} to another request");
            said.push_str(&words(&answer));
            if "ASan".contains(answer.opcode) {
                token = Some(u64::from_be_bytes(
                    answer.rest[..8].try_into().expect("8 bytes"),
                ));
            }
        }
        if said.is_empty() {
            said.push('Q');
        }
        let after = self.look(key).await;
        self.judge(&said, row, token, before, after);
        if said == "Q" {
            self.asker.expect(&cancel(8, 7), timed_out(7)).await;
            self.asker.answer().await;
        }
        if let Some(token) = token {
            self.give_back(row, key, other, token).await;
        }
        said
    }

    /// Whether the key went where the answer says.
    fn judge(&self, said: &str, row: &str, token: Option<u64>, before: Status, after: Status) {
        let opcode = said.chars().next().expect("an answer");
        let context = format!("{row}: {said}, {before:?}, {after:?}");
        match opcode {
            'A' | 'S' | 'a' | 'n' => {
                let token = token.expect("a token");
                assert!(token > before.token && after.state == 1, "{context}");
                // Of several slots the lowest one is told, which may be another's.
                assert!(after.token == token || after.slots > 0, "{context}");
                assert_eq!(after.taken, before.taken + 1, "{context}");
                assert_eq!(after.waiters, before.waiters, "{context}");
            }
            'Q' => {
                let waiters = before.waiters + 1;
                let expected = Status { waiters, ..before };
                assert_eq!(without_time(after), without_time(expected), "{context}");
            }
            'R' | 'G' | 'h' if row.ends_with("later") || before.state == 2 => {
                assert_eq!((after.state, after.token), (2, before.token), "{context}");
                assert!(after.remaining_ms > 3_000_000, "{context}");
            }
            'R' | 'G' | 'h' => {
                assert_ne!(after.token, before.token, "{context}");
                assert_eq!(after.taken, before.taken - 1, "{context}");
            }
            'x' => {
                assert_eq!(without_time(after), without_time(before), "{context}");
                assert!(after.remaining_ms > 3_000_000, "{context}");
            }
            _ => {
                assert_eq!(without_time(after), without_time(before), "{context}");
                assert!(after.remaining_ms <= before.remaining_ms, "{context}");
            }
        }
    }

    async fn give_back(&mut self, row: &str, key: &str, other: &str, token: u64) {
        let answer = if row.starts_with('S') || row.starts_with("a-set") {
            self.asker.ask(&release_set(9, token, &[key, other])).await
        } else {
            self.asker.ask(&release(9, token, key)).await
        };
        assert!("RG".contains(answer.opcode), "{row}: {answer:?}");
    }
}

fn without_time(status: Status) -> Status {
    Status {
        remaining_ms: 0,
        ..status
    }
}

/// An answer in the words of the table.
fn words(answer: &Answer) -> String {
    match answer.opcode {
        'E' | 'c' => format!("{}{}", answer.opcode, answer.rest[0]),
        'q' => {
            let status = answer.status(answer.id);
            let Status {
                state,
                waiters,
                slots,
                taken,
                ..
            } = status;
            format!("{state}{waiters}{slots}{taken}")
        }
        opcode => opcode.to_string(),
    }
}

#[tokio::test]
async fn every_request_in_every_state_of_a_key() {
    let mut cell = Cell::new().await;
    let mut cells = 0;
    let mut wrong = Vec::new();
    let rows = TABLE.lines().filter(|line| !line.is_empty()).skip(1);
    for (number, line) in rows.enumerate() {
        let mut words = line.split_whitespace();
        let row = words.next().expect("a row");
        let expected: Vec<&str> = words.collect();
        assert_eq!(expected.len(), STATES.len(), "the cells of {row}");
        for (state, expected) in STATES.into_iter().zip(expected) {
            let key = format!("{number}-{state:?}-a");
            let other = format!("{number}-{state:?}-b");
            let said = cell.run(row, state, &key, &other).await;
            cells += 1;
            if said != expected {
                wrong.push(format!("{row} in {state:?}: {said}, not {expected}"));
            }
        }
    }
    println!("{cells} cells");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(cells, 38 * STATES.len());
}
