// Rates of the CUDA ops.
int main() {
  return 0;
}
