"""Secure sums (docs/secure-sums.md): the protocol without a network, files and methods.

It is the protocol of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS
2017), with double masking, over a complete graph. All randomness comes from the operating system; everything else is
derived with `cryptography`. No generator of NumPy's is used here.
"""
