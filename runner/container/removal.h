// Getting rid of containers: those of this job at its end, and those that nobody holds any more.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runner/container/engine.h"

namespace sortie::runner::container {

/// Ends and removes the containers `names`, which carry `folder` as their label, again and again
/// until the engine knows none of them. Error after `limit`: what is left, and what the engine
/// said.
boost::asio::awaitable<Result<>> remove_containers(boost::asio::io_context& io, EngineCalls& calls,
                                                   Client client, std::vector<std::string> names,
                                                   std::string folder,
                                                   std::chrono::milliseconds limit);

/// A run whose containers are to go although somebody may hold its folder: earlier attempts of it
/// (frozen, lost), or all of it.
struct Fenced {
  std::string run_id;
  std::uint32_t below_attempt = 0;  // 0 = all
  std::uint32_t node_rank = 0;      // of earlier attempts alone
};

/// Removes this user's containers whose run folder nobody holds (the host lost power, runner and
/// keepers were killed together), and what is fenced. Those of runners in other pid namespaces of
/// this machine stay: their folders and processes are not seen from here. Returns how many.
boost::asio::awaitable<Result<std::size_t>> remove_stale(boost::asio::io_context& io,
                                                         EngineCalls& calls, Client client,
                                                         Fenced fenced);

}  // namespace sortie::runner::container
