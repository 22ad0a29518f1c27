// SPDX-License-Identifier: Apache-2.0
#include "reference/matrix.h"

namespace meshgrad::reference {

Matrix sum(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows, a.cols);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) result.at(i, j) = a.at(i, j) + b.at(i, j);
  }
  return result;
}

}  // namespace meshgrad::reference
