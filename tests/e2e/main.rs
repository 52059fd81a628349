//! Sandbar as people and programs use it: the real binary, a real kernel, real clients. One program with a module for each
//! capability, so that what they share is compiled and linked once.

mod agent_sandbox;
mod asking;
mod attach;
mod bare;
mod browser;
mod cli;
mod crash;
mod crowd;
mod disaster;
mod fence;
mod forward;
mod full;
mod gate;
mod grpc;
mod install;
mod kubernetes;
mod lifecycle;
mod mcp;
mod mcp_inspector;
mod mcp_stdio;
mod night;
mod openapi;
mod preview;
mod recipes;
mod rest;
mod restarts;
mod runtimes;
mod scale;
mod servers;
mod sign_in;
mod support;
mod terminals;
mod threads;
mod webhooks;
mod workspaces;
