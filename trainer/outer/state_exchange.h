// Before an exchange, the members of an order compare the hashes of their outer weights. A member
// that lacks the weights copies them from another one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/outer/site_links.h"

namespace sortie::trainer::outer {

/// State that is copied as a whole: vectors of f32, and additional numbers.
struct CopiedState {
  std::vector<std::span<float>> vectors;  // of the same sizes on all sites
  std::span<std::byte> numbers;
};

/// Memory of messages in flight. It must stay valid until links.flush() or open().
struct StateMessages {
  struct Hello {
    std::uint64_t epoch = 0, hash = 0, lacks_state = 0;
  };
  /// Request of a site without state to each member.
  struct Wish {
    std::uint64_t wanted = 0;
  };
  std::vector<Hello> hellos;
  std::vector<Wish> wishes;
};

/// The state of a member before an exchange.
struct StateOffer {
  std::uint64_t hash = 0;  // of its state; 0 = not known
  bool lacks_state = false;
  std::vector<std::string> donors;  // preferred donors, in this order; then any
};

struct StateOutcome {
  bool copied = false;   // from another member
  std::string donor;     // member that it was, or was to be, copied from
  bool differs = false;  // this member's state differs from that of most members
  std::string reason;
};

/// Collective over the members of the order, for which `links` must be open. If a member lacks the
/// state, `state` is called on every member; the memory that it returns must stay valid until
/// links.flush(). If a member's state differs from that of most members, nothing is copied, and
/// `reason` is set on all members. Returns the errors of the links; ErrorCode::unsupported if no
/// member has the state.
Result<StateOutcome> agree_on_state(SiteLinks& links, const training::OuterExchange& order,
                                    std::size_t self, const StateOffer& offer,
                                    StateMessages& messages,
                                    const std::function<Result<CopiedState>()>& state);

}  // namespace sortie::trainer::outer
