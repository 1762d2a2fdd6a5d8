//! Which keys may have a message that is set aside: a Bloom filter. It never says no of one that has. Pure.

/// Bits for each key: of four that are looked at, all are set for about one in 10,000 other keys.
const BITS_EACH: usize = 32;
/// In bits: 8 kB.
const LEAST: usize = 1 << 16;
/// In bits: 2 MB, however many keys there are. With a million of them, a few more of a thousand are asked for in vain.
const MOST: usize = 1 << 24;

/// Never larger than 2 MB.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    words: Vec<u64>,
    /// Keys that were put in, some of them perhaps more than once.
    keys: usize,
}

impl Filter {
    /// As large as can be: [`Filter::fold`] makes it as large as it has to be.
    pub(super) fn new() -> Self {
        Self { words: vec![0; MOST / 64], keys: 0 }
    }

    /// As small as its keys allow. The bits of a key are taken modulo the size, a power of two: so one half laid over the other is
    /// what would have been made at that size.
    pub(super) fn fold(&mut self) {
        let bits = (self.keys * BITS_EACH).next_power_of_two().clamp(LEAST, MOST);
        while self.words.len() * 64 > bits {
            let upper = self.words.split_off(self.words.len() / 2);
            self.words.iter_mut().zip(upper).for_each(|(word, upper)| *word |= upper);
        }
        self.words.shrink_to_fit();
    }

    pub(super) fn put(&mut self, hash: i64) {
        self.keys += 1;
        for (word, bit) in places(hash, self.words.len()) {
            if let Some(word) = self.words.get_mut(word) {
                *word |= bit;
            }
        }
    }

    pub(super) fn may_have(&self, hash: i64) -> bool {
        places(hash, self.words.len()).all(|(word, bit)| self.words.get(word).is_none_or(|word| word & bit != 0))
    }

    /// Whether a new one would serve better: so many keys of which it could not say no were asked for in vain, or it is crowded.
    pub(super) fn is_worn(&self, vain: usize) -> bool {
        let bits = self.words.len() * 64;
        vain > 1_000 + self.keys / 8 || (bits < MOST && self.keys * BITS_EACH > 4 * bits)
    }
}

/// Four bits for each key. The hash is a good one already: two parts of it make as many others as are needed.
fn places(hash: i64, words: usize) -> impl Iterator<Item = (usize, u64)> {
    let hash = hash.cast_unsigned();
    // Its low twelve bits may be the same for all keys.
    let (first, step) = (hash >> 32, (hash >> 12) | 1);
    (0..4_u64).map(move |n| {
        let at = first.wrapping_add(step.wrapping_mul(n));
        let word = usize::try_from(at >> 6).unwrap_or_default() & (words - 1);
        (word, 1 << (at & 63))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of a number: what the server's function gives is as good.
    fn hash(n: u64) -> i64 {
        let mut mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).cast_signed()
    }

    fn of(keys: impl Iterator<Item = u64>) -> Filter {
        let mut filter = Filter::new();
        keys.for_each(|n| filter.put(hash(n)));
        filter.fold();
        filter
    }

    #[test]
    fn it_says_no_of_none_that_it_has_and_of_most_others() {
        for many in [0, 1, 1_000, 100_000] {
            let mut filter = of(0..many);
            filter.put(hash(many));
            assert!((0..=many).all(|n| filter.may_have(hash(n))), "{many}");
            let vain = (1_000_000..1_100_000).filter(|n| filter.may_have(hash(*n))).count();
            assert!(vain < 30, "{many}: {vain} of 100,000");
        }
        assert_eq!(of(0..100_000).words.len() * 64, 1 << 22);
    }

    /// All keys of a lane have the same low bits.
    #[test]
    fn keys_of_one_lane_of_many_are_told_apart() {
        let lane = |n: &u64| hash(*n) & 4_095 == 7;
        let filter = of((0..4_000_000).filter(lane));
        let vain = (4_000_000..8_000_000).filter(lane).filter(|n| filter.may_have(hash(*n))).count();
        assert!(vain < 5, "{vain} of about 1,000");
    }

    #[test]
    fn it_is_worn_when_it_is_crowded_or_asked_in_vain() {
        let mut filter = of(0..100);
        assert!(!filter.is_worn(1_000) && filter.is_worn(1_100));
        (100..10_000).for_each(|n| filter.put(hash(n)));
        assert!(filter.is_worn(0));
    }
}
