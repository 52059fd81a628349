//! Tests that repeat something. CI runs a short round of each, `make soak` the long one.

/// How often, how many or how much: `short` unless `SANDBAR_SOAK` is set.
pub fn endurance<T>(short: T, long: T) -> T {
    if std::env::var_os("SANDBAR_SOAK").is_some() { long } else { short }
}
