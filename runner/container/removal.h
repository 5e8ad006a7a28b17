// Removes containers: those of this job at its end, and those whose owners are gone.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runner/container/engine.h"

namespace sortie::runner::container {

/// Ends and removes the containers `names`, whose folder label is `folder`. Retries until the
/// engine lists none of them. Error after `limit`: what is left, with the engine's message and
/// the command that removes it.
boost::asio::awaitable<Result<>> remove_containers(boost::asio::io_context& io, EngineCalls& calls,
                                                   Client client, std::vector<std::string> names,
                                                   std::string folder,
                                                   std::chrono::milliseconds limit);

/// A run whose containers are removed even if a process may hold its folder: earlier attempts of it
/// (frozen, lost), or all attempts.
struct Fenced {
  std::string run_id;
  std::uint32_t below_attempt = 0;  // 0 = all
  std::uint32_t node_rank = 0;      // compared for earlier attempts only
};

/// Removes this user's containers whose run folder no process holds (the host lost power, or runner
/// and keepers were killed together), and the fenced ones. Containers of runners in other pid
/// namespaces of this machine stay, because their folders and processes are not visible from here.
/// Returns the number of removed containers.
boost::asio::awaitable<Result<std::size_t>> remove_stale(boost::asio::io_context& io,
                                                         EngineCalls& calls, Client client,
                                                         Fenced fenced);

}  // namespace sortie::runner::container
