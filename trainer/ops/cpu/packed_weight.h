// The packed copies of a weight, one per layout that its products require. Included by files of
// this folder only.
#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "trainer/ops/cpu/tiling.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

/// Copies of one matrix in oneDNN's layouts. Products with different row counts may prefer
/// different layouts, so there can be several copies.
class PackedForms {
 public:
  /// Returns the matrix B [k, n] at `plain` (strides row, col) in layout `desc`: the plain memory
  /// itself if it has that layout, else a copy. Copies are kept and refreshed when stale. If the
  /// context keeps no packed weights, a copy lives as long as the caller holds it.
  std::shared_ptr<const void> get(ExecutionContext& context, DType dtype, const void* plain,
                                  std::int64_t row, std::int64_t col,
                                  const dnnl::memory::desc& desc);
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Form& form : forms_) sum += form.desc.get_size();
    return sum;
  }
  void mark_stale() {
    for (Form& form : forms_) form.fresh = false;
  }

 private:
  struct Form {
    dnnl::memory::desc desc;
    std::shared_ptr<void> memory;
    bool fresh = false;
  };
  std::vector<Form> forms_;
};

struct CpuPackedCopies final : PackedCopies {
  explicit CpuPackedCopies(std::size_t tiles) : tile_forward(tiles), tile_backward_data(tiles) {}
  std::size_t bytes() const override;
  void mark_stale();

  PackedForms forward, backward_data;
  // The same for tiles of kVocabularyTile rows, which linear_cross_entropy works on.
  std::vector<PackedForms> tile_forward, tile_backward_data;
};
/// The CPU's copies of a weight, created on first use.
CpuPackedCopies& copies_of(const PackedWeight& w);

/// Rows of the first product of an expert with `rows` rows.
std::int64_t grouped_piece(std::int64_t rows);

}  // namespace sortie::trainer::ops
