// Communicator for planning: its collectives transfer nothing and count the bytes that they would
// send.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Destination of sent bytes.
struct SentTo {
  std::string group;  // name of the group
  int peer = -1;      // one rank of it; -1: all others, an equal part to each
  auto operator<=>(const SentTo&) const = default;
};
/// Payload bytes that this rank would send, by destination.
using SentBytes = std::map<SentTo, double>;

/// Creates the communicator of rank `rank` in a group of `size`. Collectives leave tensors
/// unchanged. all_gather() of a text returns this rank's text for every rank. split() is not
/// supported (checked). `sent` must outlive it.
std::unique_ptr<Communicator> make_counting_communicator(int rank, int size, std::string name,
                                                         SentBytes& sent);

}  // namespace sortie::trainer
