//! The checks, each named by the promise it is about.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{Content, Finding, LEASE, Lab, Letter, Moves, Seen, append, deliver, ensure, position};
use crate::clock::Deadline;
use crate::lane::Epoch;
use crate::message::{Messages, Timestamp};
use crate::outcome::{AppendError, Fault, Meaning, Outcome};
use crate::sink::{OpenError, Opening, Part};
use crate::source::Opaque;

type Check = for<'a> fn(&'a Lab<'a>) -> Pin<Box<dyn Future<Output = Result<Finding, Seen>> + Send + 'a>>;

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        /// All checks, in the order in which they run.
        pub(super) const ALL: &[(&str, Check)] = &[$((stringify!($name), |lab| Box::pin($name(lab)))),*];
    };
}

checks! {
    the_probe_tells_what_is_declared,
    messages_arrive_whole_and_in_order,
    the_rest_of_a_batch_is_taken_alone,
    a_repeat_is_dropped_by_its_id,
    a_position_is_given_back,
    nothing_is_written_from_another_position,
    an_older_epoch_cannot_open,
    an_equal_epoch_cannot_open_for_the_first_time,
    an_open_lane_is_refused_after_a_newer_epoch,
    a_fence_holds_one_lane_only,
    a_cancelled_append_is_found_out_by_opening_again,
    nothing_is_written_after_the_deadline,
    an_unacceptable_message_is_told_and_its_key_waits,
    an_unreachable_destination_is_down,
    large_and_many_messages_arrive,
    lanes_are_written_at_the_same_time,
}

const NO_FENCE: &str = "the sink does not fence: a replica that lost its lane may still write";
const NO_POSITION: &str = "the sink keeps no position";

async fn the_probe_tells_what_is_declared(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let found = lab.capabilities().await?;
    let declared = lab.declared;
    ensure(found.fences == declared.fences && found.keeps_position == declared.keeps_position, || {
        format!("declared {declared:?}, the probe says {found:?}")
    })?;
    Ok(Finding::Held)
}

async fn messages_arrive_whole_and_in_order(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let letters = peculiar_letters(lab.name);
    for (number, batch) in (1_i64..).zip(letters.chunks(4)) {
        deliver(&mut lane, batch, Moves(number - 1, number)).await?;
    }
    lab.expect(&letters).await?;
    Ok(lab.unless(lab.declared.can_be_read, "what arrives cannot be read back"))
}

/// Whatever a producer may write, and a sink may mistake for something else.
fn peculiar_letters(name: &str) -> Vec<Letter> {
    let contents = [
        Content::None,
        Content::Bytes(b"text".to_vec()),
        Content::Bytes(b"\n a NUL \0 and a line\r\n".to_vec()),
        Content::Bytes((0..=255).collect()),
        Content::Json("null".to_owned()),
        Content::Json("{\"a\":  1, \"a\": 2}".to_owned()),
        Content::Json("\"\\u0041\\n\"".to_owned()),
        Content::Json("1.0e+2".to_owned()),
        Content::Json(format!("{}{}", "[".repeat(1_000), "]".repeat(1_000))),
    ];
    let keys = [None, Some(""), Some("a key"), Some("schlüssel \"ß\"")];
    let headers = [None, Some("{}"), Some("{\"x\": [1, {\"y\": \"\\\"\"}]}")];
    let mut letters: Vec<Letter> = Vec::new();
    for (number, content) in contents.into_iter().enumerate() {
        letters.push(Letter {
            topic: if number % 2 == 0 { "t".to_owned() } else { "topic ö \u{1F4EC}".to_owned() },
            key: keys.get(number % keys.len()).copied().flatten().map(str::to_owned),
            headers: headers.get(number % headers.len()).copied().flatten().map(str::to_owned),
            content,
            created_at: Timestamp(1_700_000_000_000_001),
            ..Letter::new(&format!("{name}-{number}"), "")
        });
    }
    letters
}

async fn large_and_many_messages_arrive(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let capabilities = lab.capabilities().await?;
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let many = capabilities.max_batch_messages.unwrap_or(1_000).min(1_000);
    let mut letters = lab.letters(0, many);
    deliver(&mut lane, &letters, Moves(0, 1)).await?;
    let large = capabilities.max_message_bytes.unwrap_or(4 << 20).min(4 << 20);
    let bytes: Vec<u8> = (0..large).map(|n| u8::try_from(n % 251).unwrap_or_default()).collect();
    let large = Letter { content: Content::Bytes(bytes), ..Letter::new(&format!("{}-large", lab.name), "") };
    deliver(&mut lane, std::slice::from_ref(&large), Moves(1, 2)).await?;
    letters.push(large);
    lab.expect(&letters).await?;
    Ok(Finding::Held)
}

async fn the_rest_of_a_batch_is_taken_alone(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let letters = lab.letters(0, 5);
    let mut messages = Messages::default();
    letters.iter().for_each(|letter| messages.push(letter.message()));
    let next = Opaque::from_bytes(b"position 1".to_vec());
    let part = Part::whole(&messages, None, &next).rest(&[1, 4]);
    let outcomes = lane.append(&part, &Deadline::after(LEASE)).await;
    ensure(outcomes == Ok(vec![Outcome::Delivered; 2]), || format!("two messages were handed over: {outcomes:?}"))?;
    let wanted: Vec<Letter> = [1, 4].iter().filter_map(|at| letters.get(*at)).cloned().collect();
    lab.expect(&wanted).await?;
    Ok(Finding::Held)
}

/// Large batches, so that lanes which share an output and are not careful write into each other's lines.
async fn lanes_are_written_at_the_same_time(lab: &Lab<'_>) -> Result<Finding, Seen> {
    const LANES: i32 = 3;
    const BATCHES: i64 = 2;
    const LETTERS: usize = 8;
    let letter = |lane: i32, batch: i64, n: usize| Letter {
        content: Content::Json(format!("\"{}\"", "x".repeat(300_000))),
        ..Letter::new(&format!("{}-{lane}-{batch}-{n}", lab.name), &lane.to_string())
    };
    let lanes = (0..LANES).map(|lane| async move {
        let mut open = lab.open(lane, 1, Opening::First).await?;
        for batch in 1..=BATCHES {
            let letters: Vec<Letter> = (0..LETTERS).map(|n| letter(lane, batch, n)).collect();
            deliver(&mut open, &letters, Moves(batch - 1, batch)).await?;
        }
        Ok::<(), Seen>(())
    });
    futures_util::future::try_join_all(lanes).await?;
    let arrived = lab.arrived().await;
    for lane in (0..LANES).filter(|_| lab.declared.can_be_read) {
        let key = Some(lane.to_string());
        let of_lane: Vec<&Letter> = arrived.iter().filter(|letter| letter.key == key).collect();
        let wanted: Vec<Letter> =
            (1..=BATCHES).flat_map(|batch| (0..LETTERS).map(move |n| letter(lane, batch, n))).collect();
        ensure(of_lane.iter().copied().eq(&wanted), || format!("lane {lane}: {} arrived, or mixed up", of_lane.len()))?;
    }
    Ok(Finding::Held)
}

async fn a_repeat_is_dropped_by_its_id(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let letters = lab.letters(0, 6);
    let (first, mixed) = (letters.get(..3).unwrap_or_default(), letters.get(1..5).unwrap_or_default());
    deliver(&mut lane, first, Moves(0, 1)).await?;
    let outcomes = append(&mut lane, mixed, Moves(1, 2), &Deadline::after(LEASE)).await;
    if lab.declared.drops_repeats {
        let wanted = [Outcome::Repeated, Outcome::Repeated, Outcome::Delivered, Outcome::Delivered];
        ensure(outcomes.as_deref() == Ok(&wanted), || format!("two repeats and two new messages: {outcomes:?}"))?;
        lab.expect(letters.get(..5).unwrap_or_default()).await?;
    } else {
        ensure(outcomes == Ok(vec![Outcome::Delivered; 4]), || format!("repeats are not known: {outcomes:?}"))?;
        lab.expect(&[first, mixed].concat()).await?;
    }
    Ok(lab.unless(lab.declared.drops_repeats, "a repeat arrives again, under the same message id"))
}

async fn a_position_is_given_back(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let holds = lane.position().await;
    ensure(holds == Ok(None), || format!("a lane that was never written to holds {holds:?}"))?;
    deliver(&mut lane, &lab.letters(0, 1), Moves(0, 1)).await?;
    deliver(&mut lane, &lab.letters(1, 2), Moves(1, 2)).await?;
    drop(lane);
    let wanted = if lab.declared.keeps_position { position(2) } else { None };
    for (epoch, opening) in [(1, Opening::Again), (2, Opening::First)] {
        let holds = lab.open(0, epoch, opening).await?.position().await;
        ensure(holds.as_ref() == Ok(&wanted), || format!("epoch {epoch}: holds {holds:?}, not {wanted:?}"))?;
    }
    Ok(lab.unless(lab.declared.keeps_position, NO_POSITION))
}

async fn nothing_is_written_from_another_position(lab: &Lab<'_>) -> Result<Finding, Seen> {
    if !lab.declared.keeps_position {
        return Ok(Finding::NotPromised(NO_POSITION));
    }
    let mut lane = lab.open(0, 1, Opening::First).await?;
    deliver(&mut lane, &lab.letters(0, 1), Moves(0, 1)).await?;
    for prev in [0, 2] {
        let answer = append(&mut lane, &lab.letters(1, 3), Moves(prev, 3), &Deadline::after(LEASE)).await;
        ensure(answer == Err(AppendError::Moved), || format!("from position {prev} instead of 1: {answer:?}"))?;
    }
    lab.expect(&lab.letters(0, 1)).await?;
    let holds = lab.open(0, 1, Opening::Again).await?.position().await;
    ensure(holds == Ok(position(1)), || format!("it moved to {holds:?}"))?;
    Ok(Finding::Held)
}

async fn an_older_epoch_cannot_open(lab: &Lab<'_>) -> Result<Finding, Seen> {
    drop(lab.open(0, 5, Opening::First).await?);
    for opening in [Opening::First, Opening::Again] {
        let answer = lab.try_open(0, 4, opening).await?;
        opens_unless_fenced(lab, answer.as_ref().err(), 5)?;
    }
    Ok(lab.unless(lab.declared.fences, NO_FENCE))
}

async fn an_equal_epoch_cannot_open_for_the_first_time(lab: &Lab<'_>) -> Result<Finding, Seen> {
    drop(lab.open(0, 5, Opening::First).await?);
    drop(lab.open(0, 5, Opening::Again).await?);
    let answer = lab.try_open(0, 5, Opening::First).await?;
    opens_unless_fenced(lab, answer.as_ref().err(), 5)?;
    drop(lab.open(0, 6, Opening::First).await?);
    Ok(lab.unless(lab.declared.fences, NO_FENCE))
}

fn opens_unless_fenced(lab: &Lab<'_>, answer: Option<&OpenError>, holds: i64) -> Result<(), Seen> {
    let wanted = lab.declared.fences.then_some(OpenError::Fenced { epoch: Epoch(holds) });
    ensure(answer == wanted.as_ref(), || format!("the sink knows epoch {holds}: {answer:?}, not {wanted:?}"))
}

/// The paused replica that wakes up: it goes on with the lane that it opened before.
async fn an_open_lane_is_refused_after_a_newer_epoch(lab: &Lab<'_>) -> Result<Finding, Seen> {
    if !lab.declared.fences {
        return Ok(Finding::NotPromised(NO_FENCE));
    }
    let mut old = lab.open(0, 1, Opening::First).await?;
    let mut new = lab.open(0, 2, Opening::First).await?;
    let fenced = Err(AppendError::Fenced { epoch: Epoch(2) });
    // Both stand at the same position, so only the epoch tells them apart.
    let answer = append(&mut old, &lab.letters(0, 2), Moves(0, 1), &Deadline::after(LEASE)).await;
    ensure(answer == fenced, || format!("the newer epoch has written nothing yet: {answer:?}"))?;
    lab.expect(&[]).await?;
    deliver(&mut new, &lab.letters(2, 4), Moves(0, 1)).await?;
    let answer = append(&mut old, &lab.letters(4, 6), Moves(1, 2), &Deadline::after(LEASE)).await;
    ensure(answer == fenced, || format!("the newer epoch has written: {answer:?}"))?;
    lab.expect(&lab.letters(2, 4)).await?;
    let answer = lab.try_open(0, 1, Opening::Again).await?;
    opens_unless_fenced(lab, answer.as_ref().err(), 2)?;
    Ok(Finding::Held)
}

async fn a_fence_holds_one_lane_only(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut one = lab.open(0, 1, Opening::First).await?;
    let mut other = lab.open(1, 9, Opening::First).await?;
    deliver(&mut one, &lab.letters(0, 1), Moves(0, 1)).await?;
    deliver(&mut other, &lab.letters(1, 2), Moves(0, 7)).await?;
    deliver(&mut one, &lab.letters(2, 3), Moves(1, 2)).await?;
    lab.expect(&lab.letters(0, 3)).await?;
    Ok(Finding::Held)
}

/// Dropped at several moments: before anything was sent, while it is under way, and when it is done.
async fn a_cancelled_append_is_found_out_by_opening_again(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    for round in 0..8_u16 {
        let at = usize::from(round) * 5;
        let (letters, moves) = (lab.letters(at, at + 5), Moves(i64::from(round), i64::from(round) + 1));
        let (patience, deadline) = (Duration::from_micros(300) * u32::from(round), Deadline::after(LEASE));
        let cancelled = tokio::time::timeout(patience, append(&mut lane, &letters, moves, &deadline)).await;
        drop(cancelled);
        lane = finish(lab, &letters, moves).await?;
    }
    drop(lane);
    let letters = lab.letters(0, 40);
    if lab.declared.keeps_position {
        lab.expect(&letters).await?;
    } else if lab.declared.can_be_read {
        let arrived = lab.arrived().await;
        let mut first: Vec<&Letter> = Vec::new();
        arrived.iter().for_each(|letter| {
            if !first.contains(&letter) {
                first.push(letter);
            }
        });
        ensure(first.into_iter().eq(&letters), || "a message is lost, or not in order".to_owned())?;
    }
    Ok(lab.unless(lab.declared.keeps_position, "whether a call was written that nobody waited for cannot be asked"))
}

/// Opens again, and writes what is not there. What was cancelled may still arrive meanwhile.
async fn finish(lab: &Lab<'_>, letters: &[Letter], moves: Moves) -> Result<Box<dyn crate::sink::OpenLane>, Seen> {
    for _ in 0..10 {
        let mut lane = lab.open(0, 1, Opening::Again).await?;
        let holds = lane.position().await.map_err(|fault| fault.to_string())?;
        if lab.declared.keeps_position && holds == position(moves.1) {
            return Ok(lane);
        }
        ensure(!lab.declared.keeps_position || holds == position(moves.0), || format!("it stands at {holds:?}"))?;
        match append(&mut lane, letters, moves, &Deadline::after(LEASE)).await {
            Ok(_) => return Ok(lane),
            Err(AppendError::Moved) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("the position keeps moving".to_owned())
}

async fn nothing_is_written_after_the_deadline(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let over = Deadline::after(Duration::from_millis(1));
    over.over().await;
    let answer = append(&mut lane, &lab.letters(0, 2), Moves(0, 1), &over).await;
    ensure(answer == Err(AppendError::LeaseOver), || format!("{answer:?}"))?;
    lab.expect(&[]).await?;
    deliver(&mut lane, &lab.letters(2, 4), Moves(0, 1)).await?;
    lab.expect(&lab.letters(2, 4)).await?;
    Ok(Finding::Held)
}

async fn an_unacceptable_message_is_told_and_its_key_waits(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let Some(bad) = lab.subject.unacceptable() else {
        return Ok(Finding::NotPromised("there is no message that the sink does not take"));
    };
    let bad = Letter { id: format!("{}-bad", lab.name), key: Some("a".to_owned()), ..bad };
    let letter = |id: &str, key: &str| Letter::new(&format!("{}-{id}", lab.name), key);
    let letters = [letter("1", "a"), bad.clone(), letter("2", "b"), letter("3", "a")];
    let mut lane = lab.open(0, 1, Opening::First).await?;
    let outcomes = append(&mut lane, &letters, Moves(0, 1), &Deadline::after(LEASE)).await;
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        // It may not say which, and then has written nothing.
        Err(AppendError::Refused(fault)) => {
            means(&fault, Meaning::Reject)?;
            vec![Outcome::NotTried; letters.len()]
        }
        Err(error) => return Err(format!("a message is at fault, and not the sink: {error:?}")),
    };
    ensure(outcomes.len() == letters.len(), || format!("{} messages, {} outcomes", letters.len(), outcomes.len()))?;
    let done: Vec<Letter> =
        letters.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_done()).map(|(sent, _)| sent.clone()).collect();
    ensure(!done.contains(&bad), || format!("the sink says that it has it: {outcomes:?}"))?;
    let later = letters.get(3).is_some_and(|later| done.contains(later));
    ensure(!later, || format!("a later message of the same key was written: {outcomes:?}"))?;
    ensure(!lab.declared.keeps_position || done.is_empty(), || format!("neither all nor nothing: {outcomes:?}"))?;
    lab.expect(&done).await?;
    let alone = append(&mut lane, std::slice::from_ref(&bad), Moves(0, 1), &Deadline::after(LEASE)).await;
    match alone.as_deref() {
        Ok([Outcome::Rejected(fault)]) | Err(AppendError::Refused(fault)) => means(fault, Meaning::Reject)?,
        _ => return Err(format!("alone: {alone:?}")),
    }
    lab.expect(&done).await?;
    Ok(Finding::Held)
}

/// The code says what an error means, and an answer says no other thing.
fn means(fault: &Fault, meaning: Meaning) -> Result<(), Seen> {
    let code = fault.code();
    ensure(code.meaning == meaning, || {
        format!("{} means {}, and not {}", code.name, code.meaning.name(), meaning.name())
    })
}

async fn an_unreachable_destination_is_down(lab: &Lab<'_>) -> Result<Finding, Seen> {
    let Some(sink) = lab.subject.unreachable() else {
        return Ok(Finding::NotPromised("there is nothing that could be out of reach"));
    };
    let answer = sink.open(&lab.grant(0, 1)?, Opening::First).await.err();
    let Some(OpenError::SinkDown(fault)) = answer else { return Err(format!("opening: {answer:?}")) };
    means(&fault, Meaning::Down)?;
    let answer = sink.probe().await.err();
    ensure(answer.is_some(), || "the probe says that it can be used".to_owned())?;
    Ok(Finding::Held)
}
