"""Agreement of raters: Cohen's and Fleiss' kappa, Krippendorff's alpha, and what a minimum demands of them."""
