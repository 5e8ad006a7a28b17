// A group of a rank that is only planned: its collectives carry nothing and count what they would
// send.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Payload bytes that this rank would send, by the group's name.
using SentBytes = std::map<std::string, double>;

/// Rank `rank` of a group of `size`. Tensors are left as they are, gathered texts are this rank's.
/// `sent` outlives it. It can not be split.
std::unique_ptr<Communicator> make_counting_communicator(int rank, int size, std::string name,
                                                         SentBytes& sent);

}  // namespace sortie::trainer
