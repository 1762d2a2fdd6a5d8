//! In which order faults are drawn, and when not.
//!
//! Cards are shuffled, as many of each kind as it has weight, so that every kind comes. A card that something else is in the way
//! of waits for its turn. All is decided by the seed, but for how long cards wait.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::units::{Kind, Unit};
use crate::torture::fleet::is_lasting;
use crate::torture::plan::{Plan, between};

/// So many cards wait; then the one that waits longest is given up.
const MOST_WAIT: usize = 8;
/// How often a card is played that something is in the way of.
const TRIES: u32 = 4;
/// At most so many fail-overs in a run, and doublings of the lanes.
const FAIL_OVERS: u32 = 20;
const SPLITS: u32 = 3;
/// From one fail-over to the next in a run that goes by the number of its messages.
const APART: Duration = Duration::from_secs(180);

/// One fault to come.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) unit: &'static Unit,
    /// Whom it hits, where there is a choice.
    pub(super) target: usize,
    /// What its own random numbers come from.
    pub(super) seed: u64,
    tries: u32,
}

/// The cards.
pub(super) struct Deck {
    random: StdRng,
    units: Vec<&'static Unit>,
    replicas: usize,
    left: Vec<Card>,
    waiting: VecDeque<Card>,
    /// Those that wait have every second turn, so that they do not come all at once.
    turn: bool,
}

impl Deck {
    pub(super) fn new(random: StdRng, units: Vec<&'static Unit>, replicas: usize) -> Deck {
        Deck { random, units, replicas, left: Vec::new(), waiting: VecDeque::new(), turn: false }
    }

    /// A card that can be played now, with what `take` has given it, and one that is given up.
    pub(super) fn draw<T>(&mut self, mut take: impl FnMut(&Card) -> Option<T>) -> (Option<(Card, T)>, Option<Card>) {
        self.turn = !self.turn;
        if self.turn {
            for nth in 0..self.waiting.len() {
                if let Some(taken) = self.waiting.get(nth).and_then(&mut take)
                    && let Some(card) = self.waiting.remove(nth)
                {
                    return (Some((card, taken)), None);
                }
            }
        }
        if self.left.is_empty() {
            self.left = self.shuffled();
        }
        let Some(card) = self.left.pop() else { return (None, None) };
        match take(&card) {
            Some(taken) => (Some((card, taken)), None),
            None => (None, self.wait(card)),
        }
    }

    /// Something was in its way. Gives it back once that was so too often.
    pub(super) fn put_back(&mut self, mut card: Card) -> Option<Card> {
        card.tries += 1;
        if card.tries >= TRIES { Some(card) } else { self.wait(card) }
    }

    fn wait(&mut self, card: Card) -> Option<Card> {
        self.waiting.push_back(card);
        if self.waiting.len() > MOST_WAIT { self.waiting.pop_front() } else { None }
    }

    fn shuffled(&mut self) -> Vec<Card> {
        let mut cards = Vec::new();
        for unit in &self.units {
            for _ in 0..unit.weight {
                let mut target = self.random.random_range(0..self.replicas.max(1));
                if matches!(unit.kind, Kind::Kill | Kind::CleanStop) && is_lasting(target, self.replicas) {
                    target = self.random.random_range(1..self.replicas);
                }
                cards.push(Card { unit, target, seed: self.random.random(), tries: 0 });
            }
        }
        cards.shuffle(&mut self.random);
        cards
    }
}

/// What is left of what a run bears only so often. Spent by what has happened, whether or not the fault went to its end.
pub(super) struct Budget {
    apart: Duration,
    fail_overs: u32,
    /// When the last one was over, counted from the beginning.
    last: Option<Duration>,
    splits: u32,
}

impl Budget {
    pub(super) fn new(plan: &Plan) -> Budget {
        let apart = if plan.length.is_zero() { APART } else { plan.length / FAIL_OVERS };
        Budget { apart, fail_overs: 0, last: None, splits: 0 }
    }

    /// Whether there may be one more, so long after the beginning.
    pub(super) fn allows(&self, kind: Kind, elapsed: Duration) -> bool {
        match kind {
            Kind::Split => self.splits < SPLITS,
            kind if kind.is_fail_over() => {
                self.fail_overs < FAIL_OVERS && self.last.is_none_or(|last| elapsed >= last + self.apart)
            }
            _ => true,
        }
    }

    pub(super) fn spend(&mut self, kind: Kind, elapsed: Duration) {
        if kind.is_fail_over() {
            self.fail_overs += 1;
            self.last = Some(elapsed);
        }
        self.splits += u32::from(kind == Kind::Split);
    }
}

/// Windows without faults that end connections of everybody, so that transactions and snapshots survive that last for minutes.
pub(super) struct Quiet {
    random: StdRng,
    from: Duration,
    to: Duration,
}

impl Quiet {
    pub(super) fn new(plan: &Plan) -> Quiet {
        let mut quiet = Quiet { random: plan.random("quiet", 0), from: Duration::MAX, to: Duration::MAX };
        if plan.long {
            quiet.next(Duration::ZERO);
        }
        quiet
    }

    fn next(&mut self, after: Duration) {
        let minute = Duration::from_secs(60);
        self.from = after + between(&mut self.random, minute * 4, minute * 6);
        self.to = self.from + between(&mut self.random, minute * 3, minute * 4);
    }

    /// Whether it is quiet so long after the beginning, which only grows.
    pub(super) fn at(&mut self, elapsed: Duration) -> bool {
        while elapsed >= self.to {
            self.next(self.to);
        }
        elapsed >= self.from
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::SeedableRng;

    use super::super::units::UNITS;
    use super::*;

    fn deck(seed: u64) -> Deck {
        Deck::new(StdRng::seed_from_u64(seed), UNITS.iter().collect(), 3)
    }

    #[test]
    fn every_kind_comes_as_often_as_it_has_weight_and_the_seed_decides_when() {
        let total: u32 = UNITS.iter().map(|unit| unit.weight).sum();
        let draw = |seed| {
            let mut deck = deck(seed);
            let drawn = (0..total).map(|_| deck.draw(|_| Some(())).0.unwrap().0);
            drawn.map(|card| (card.unit.name, card.target, card.seed)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut counts = HashMap::<&str, u32>::new();
        draw(1).iter().for_each(|(name, _, _)| *counts.entry(name).or_default() += 1);
        assert!(UNITS.iter().all(|unit| counts.get(unit.name).copied().unwrap_or_default() == unit.weight));
    }

    #[test]
    fn a_card_that_something_is_in_the_way_of_waits_and_is_given_up_in_the_end() {
        let mut deck = deck(3);
        let (none, _) = deck.draw(|_| None::<()>);
        assert!(none.is_none() && deck.waiting.len() == 1);
        let first = deck.waiting[0].seed;
        deck.draw(|_| Some(()));
        let (Some((card, ())), _) = deck.draw(|_| Some(())) else { panic!("nothing was drawn") };
        assert_eq!(card.seed, first);
        let mut card = Some(card);
        for _ in 1..TRIES {
            assert!(deck.put_back(card.take().unwrap()).is_none());
            card = deck.waiting.pop_back();
        }
        assert!(deck.put_back(card.take().unwrap()).is_some());
        let given_up = (0..=MOST_WAIT).filter_map(|_| deck.draw(|_| None::<()>).1).count();
        assert_eq!(given_up, 1);
    }

    #[test]
    fn fail_overs_are_apart_however_late_the_first_one_was_and_so_many_at_most() {
        let second = Duration::from_secs(1);
        let mut budget = Budget { apart: 10 * second, fail_overs: 0, last: None, splits: 0 };
        assert!(budget.allows(Kind::FailOverSync, 35 * second));
        budget.spend(Kind::FailOverSync, 35 * second);
        assert!(!budget.allows(Kind::FailOverAsync, 44 * second) && budget.allows(Kind::FailOverWakes, 45 * second));
        (1..FAIL_OVERS).for_each(|_| budget.spend(Kind::FailOverAsync, 45 * second));
        assert!(!budget.allows(Kind::FailOverSync, 1_000 * second));
        assert!(budget.allows(Kind::Kill, Duration::ZERO));
        (0..SPLITS).for_each(|_| budget.spend(Kind::Split, Duration::ZERO));
        assert!(!budget.allows(Kind::Split, 1_000 * second));
    }

    #[test]
    fn quiet_windows_last_three_minutes_and_more_and_come_in_turns() {
        let (random, never) = (StdRng::seed_from_u64(1), Duration::MAX);
        let mut short = Quiet { random, from: never, to: never };
        assert!(!short.at(Duration::from_secs(100_000)));
        short.next(Duration::ZERO);
        let quiet = (0..3_600).filter(|second| short.at(Duration::from_secs(*second))).count();
        assert!((1_000..2_400).contains(&quiet), "{quiet}");
    }
}
