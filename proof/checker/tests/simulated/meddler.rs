//! The owner of an adopted table, who meddles with its rows.
//!
//! The log stands for the table: what is set back, or gets a key of another lane, is taken out and put in again at the end.

use rand::RngExt;

use checker::history::{Deed, Event};

use super::relay::{Row, Wrong};
use super::stage::{Committed, KEYS, Stage};

/// Does one thing, by chance, to a few rows.
pub fn meddle(stage: &mut Stage) {
    let deeds = [Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::SetBack, Deed::Deleted];
    let deed = deeds[stage.rng.random_range(0..deeds.len())];
    let wanted = stage.rng.random_range(1..4);
    let mut found = candidates(stage, deed == Deed::SetBack);
    // What was written last may be in flight, and what was marked before may be marked for long.
    found.drain(..found.len().saturating_sub(12));
    while found.len() > wanted {
        let out = stage.rng.random_range(0..found.len());
        found.remove(out);
    }
    if found.is_empty() {
        return;
    }
    let ids = found.iter().map(|index| stage.database.log[*index].id.clone()).collect();
    let transaction = stage.begin();
    stage.tell("writer", Event::Meddled { transaction, deed, ids });
    let undone = stage.chance(10.0);
    if !undone || (deed == Deed::Changed && stage.wrong == Wrong::SendsContentsThatWereRolledBack) {
        for index in found {
            carry_out(stage, deed, index, transaction);
        }
    }
    if undone {
        return stage.tell("writer", Event::RolledBack { transaction });
    }
    let sent = stage.t;
    stage.database.ledger.push(transaction);
    if !stage.chance(5.0) {
        stage.tell("writer", Event::Committed { transaction, sent });
    }
}

/// Rows that are pending, or else those that are not.
fn candidates(stage: &Stage, marked: bool) -> Vec<usize> {
    let database = &stage.database;
    let is_marked = |(index, row): (usize, &Committed)| {
        row.marked || lane(&database.rows, row.key).is_some_and(|lane| index < lane.upto)
    };
    let there = database.log.iter().enumerate().filter(|(_, row)| !row.gone);
    there.filter(|found| is_marked(*found) == marked).map(|(index, _)| index).collect()
}

fn lane(rows: &[Row], key: u32) -> Option<&Row> {
    rows.iter().find(|row| key % row.of == row.lane)
}

fn carry_out(stage: &mut Stage, deed: Deed, index: usize, transaction: u64) {
    let key = stage.rng.random_range(0..KEYS);
    let twice = stage.wrong == Wrong::SendsTwiceWhatWasSetBack;
    let database = &mut stage.database;
    let lanes = [database.log[index].key, key].map(|key| lane(&database.rows, key).map(|row| (row.lane, row.of)));
    let row = &mut database.log[index];
    let mut again = row.clone();
    match deed {
        Deed::Locked => {}
        Deed::Changed => row.content = transaction,
        Deed::Deleted => row.gone = stage.wrong != Wrong::SendsWhatWasDeleted,
        Deed::Rekeyed if lanes[0] == lanes[1] => row.key = key,
        Deed::Rekeyed => {
            row.gone = true;
            (again.key, again.rekeyed) = (key, true);
            database.log.push(again);
        }
        Deed::SetBack => {
            row.gone = true;
            (again.set_back, again.marked) = (true, false);
            database.log.extend(std::iter::repeat_n(again, if twice { 2 } else { 1 }));
        }
    }
}
