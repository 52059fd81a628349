//! The gateway over real sockets: the egress proxy and the LLM proxy.

mod egress;
mod llm;
