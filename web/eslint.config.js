import js from "@eslint/js";

/**
 * Hooks are called in the same order in every render: never in a loop, a condition or a callback of
 * an array.
 */
const HOOK = "CallExpression[callee.name=/^use[A-Z]/]";
const VARIES =
  ":matches(ForStatement, ForInStatement, ForOfStatement, WhileStatement, " +
  "IfStatement, ConditionalExpression, LogicalExpression)";
const ARRAY_CALLBACK =
  "CallExpression[callee.property.name=/^(map|flatMap|filter|forEach|reduce|find|some|every)$/]";

export default [
  js.configs.recommended,
  {
    files: ["**/*.js", "**/*.jsx"],
    languageOptions: { parserOptions: { ecmaFeatures: { jsx: true } } },
    rules: {
      "no-undef": "off", // the type checker does this, and knows the browser's names
      "no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "no-control-regex": "off", // tokens may hold control characters, which are replaced
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-restricted-syntax": [
        "error",
        { selector: `${VARIES} ${HOOK}`, message: "a hook is called in a loop or a condition" },
        {
          selector: `${ARRAY_CALLBACK} > ArrowFunctionExpression ${HOOK}`,
          message: "a hook is called in a loop",
        },
      ],
    },
  },
];
