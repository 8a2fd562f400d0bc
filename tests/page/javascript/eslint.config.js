// Rules that find mistakes in the modules of the page. Undefined names are found by tsc, which knows those of browsers.
import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    rules: {
      eqeqeq: "error",
      "no-control-regex": "off",
      "no-empty": ["error", { allowEmptyCatch: true }],
      "no-misleading-character-class": "off", // names of labels are searched for single parts of characters
      "no-self-compare": "error",
      "no-template-curly-in-string": "error",
      "no-undef": "off",
      "no-unreachable-loop": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", ignoreRestSiblings: true }],
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
    },
  },
];
