//! What tokens cost, in millionths of a dollar, rounded up so that no call is free by rounding.

/// Millionths of a dollar for a million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    pub input: u64,
    pub output: u64,
    /// Of input read from the vendor's cache; `input` where the vendor has no such price.
    pub cached_input: u64,
    /// Of input written to the vendor's cache.
    pub cache_write: u64,
}

impl Price {
    /// Cost of what was used, rounded up. Each token is counted in one of them: `input` is what was neither read from the
    /// cache nor written to it.
    pub fn of(&self, input: u64, cached_input: u64, cache_write: u64, output: u64) -> u64 {
        total([
            (input, self.input),
            (cached_input, self.cached_input),
            (cache_write, self.cache_write),
            (output, self.output),
        ])
    }

    /// The most that so many tokens can cost, whichever kind of input they are.
    pub fn at_most(&self, input: u64, output: u64) -> u64 {
        let dearest = self.input.max(self.cached_input).max(self.cache_write);
        total([(input, dearest), (output, self.output)])
    }
}

/// Rounded once, over the sum, so that parts never cost more than the bound on the whole.
fn total<const N: usize>(parts: [(u64, u64); N]) -> u64 {
    let product = |(tokens, price): (u64, u64)| u128::from(tokens) * u128::from(price);
    let sum = parts.into_iter().map(product).fold(0, u128::saturating_add);
    u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs() {
        let price = Price { input: 3_000_000, output: 15_000_000, cached_input: 300_000, cache_write: 3_750_000 };
        assert_eq!(price.of(1_000_000, 0, 0, 0), 3_000_000);
        assert_eq!(price.of(1000, 2000, 4000, 8000), 3000 + 600 + 15_000 + 120_000);
        assert_eq!(price.of(0, 0, 0, 0), 0);
        assert_eq!(price.of(0, 1, 0, 0), 1, "rounded up");
        assert_eq!(price.of(0, 10, 0, 0), 3);
        assert_eq!(price.of(0, 11, 0, 0), 4);
        assert_eq!(price.at_most(1_000_000, 1_000_000), 3_750_000 + 15_000_000);
        assert_eq!(Price::default().of(u64::MAX, 1, 1, 1), 0);
        let dear = Price { input: u64::MAX, output: u64::MAX, cached_input: u64::MAX, cache_write: u64::MAX };
        assert_eq!(dear.of(u64::MAX, u64::MAX, u64::MAX, u64::MAX), u64::MAX, "saturated");
        assert_eq!(dear.at_most(1, 0), u64::MAX / 1_000_000 + 1);
    }
}
