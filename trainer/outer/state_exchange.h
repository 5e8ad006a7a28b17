// What members of an order tell each other before they exchange: which outer weights they have. A
// member that lacks them gets them from another one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/outer/site_links.h"

namespace sortie::trainer::outer {

/// State that is copied as a whole: vectors of f32, and numbers beside them.
struct CopiedState {
  std::vector<std::span<float>> vectors;  // of one size each on all sites
  std::span<std::byte> numbers;
};

/// Messages that are under way; they outlive what is sent of them, until links.flush() or open().
struct StateMessages {
  struct Hello {
    std::uint64_t epoch = 0, hash = 0, lacks_state = 0;
  };
  /// What a site without state asks of each member.
  struct Wish {
    std::uint64_t wanted = 0;
  };
  std::vector<Hello> hellos;
  std::vector<Wish> wishes;
};

/// What a member brings to an order.
struct StateOffer {
  std::uint64_t hash = 0;  // of its state; 0 = not known
  bool lacks_state = false;
  std::vector<std::string> donors;  // where it would get it, in this order; else from any
};

struct StateOutcome {
  bool copied = false;   // from another member
  std::string donor;     // whose copy it is, or was to be
  bool differs = false;  // its state is not that of most members: not exchanged with them
  std::string reason;
};

/// Collective over the members of the order, for which `links` are open. `state` is called where it
/// is to be sent or received; the memory stays as it is until links.flush(). ErrorCode::lost as the
/// links have it; ErrorCode::unsupported where no member has the state.
Result<StateOutcome> agree_on_state(SiteLinks& links, const training::OuterExchange& order,
                                    std::size_t self, const StateOffer& offer,
                                    StateMessages& messages,
                                    const std::function<Result<CopiedState>()>& state);

}  // namespace sortie::trainer::outer
