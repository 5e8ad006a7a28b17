#include "trainer/loop/product_choice.h"

#include <fmt/core.h>

#include "trainer/ops/products.h"
#include "trainer/state/rank_texts.h"

namespace sortie::trainer {

Result<std::string> choose_products(ExecutionContext& context, Communicator& world,
                                    const std::string& saved, int timed,
                                    const std::function<void()>& rehearsal) {
  const bool first = world.rank() == 0;
  const std::string known = world.all_gather(first ? saved : "")[0];
  // Also rank 0's: either all ranks rehearse, or none.
  timed = std::stoi(world.all_gather(first ? fmt::format("{}", timed) : "")[0]);
  std::string note;
  bool used = false;
  if (!known.empty()) {
    const Result<> taken = ops::use_product_choices(context, known);
    // Ranks that can adopt them would have other bits than those that can not.
    const Result<> by_all = share_failure_of_any(world, taken);
    used = by_all.has_value();
    if (!used) {
      if (taken) ops::forget_product_choices(context);
      note = fmt::format(
          "products are chosen anew, so losses are not bit for bit those of a run "
          "that was not interrupted: {}",
          by_all.error().message);
    }
  }
  if (timed <= 1) return note;
  ops::set_product_options(context, {.timed = timed, .dropped = true});
  rehearsal();
  ops::set_product_options(context, {});
  const std::string chosen =
      ops::merge_product_choices(world.all_gather(ops::product_choices(context)));
  SORTIE_TRY(share_failure_of_any(world, ops::use_product_choices(context, chosen)));
  const std::int64_t all = ops::count_product_choices(chosen),
                     before = ops::count_product_choices(known);
  if (used && all > before)
    note = fmt::format(
        "{} of {} shapes of products are not in the checkpoint, and were timed: "
        "losses are not bit for bit those of a run that was not interrupted",
        all - before, all);
  return note;
}

}  // namespace sortie::trainer
