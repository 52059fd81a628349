//! The gateway's egress half against real servers on loopback, asked by a scripted warden.

mod bounds;
mod broken;
mod carried;
mod certificates;
mod client;
mod decisions;
mod names;
mod outbound;
mod placeholders;
mod real;
mod server;
mod streams;
mod terminated;
mod tunnels;
mod world;
