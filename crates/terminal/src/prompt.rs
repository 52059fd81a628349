//! stub
pub struct Look; pub struct Prompt; pub const THRESHOLD: f64 = 0.85; pub fn detect(_: &Look) -> Option<Prompt> { None }
