// `npm run lint`: typescript-eslint's strict rules, the type-aware rules that find real mistakes, and this
// project's style as far as a linter can check it (no enums, namespaces, parameter properties or default exports; no file
// over 700 lines; lines of 120 characters; folders on floors; the library never prints).

import eslint from '@eslint/js';
import tseslint from 'typescript-eslint';

const style = [
  ['TSEnumDeclaration', 'Use a string union or an `as const` object.'],
  ['TSModuleDeclaration', 'Use a module.'],
  ['TSParameterProperty', 'Declare the field.'],
  ['ExportDefaultDeclaration', 'Export by name.'],
].map(([selector, message]) => ({ selector, message }));

/** Where lines may still be longer than 120 characters, until they are wrapped. Nothing is added here. */
const longLines = [
  'lib/cli/**', 'lib/llama/**', 'lib/onnx/**', 'lib/server/**', 'lib/store/**', 'lib/tiers/disk-tier.ts',
  'lib/base/details.ts', 'lib/device/native-store.ts', 'lib/serving/plain-sampling.ts', 'lib/tiers/tier-contract.ts',
  'examples/**', 'scripts/**', 'test/**', 'eslint.config.mjs',
];

/**
 * The folders of lib/ from the ground up: a folder imports from those before it alone. What stands over the public face (`index.ts`) comes last.
 */
const floors = [
  'base', 'layout', 'device', 'prefix', 'store', 'side', 'cache', 'tiers', 'kv-cache', 'kernels', 'serving', 'replay',
  'prometheus', 'llama', 'onnx', 'transformers', 'server', 'cli',
];

/** Files of a folder, and of folders in it: none names a folder that stands above it. */
const oneWay = floors.slice(0, -1).flatMap((folder, floor) => ['', '/*'].map((deeper) => ({
  files: [`lib/${folder}${deeper}/*.ts`],
  rules: {
    'no-restricted-imports': ['error', {
      patterns: [{
        regex: `^${deeper === '' ? '' : '\\.\\./'}\\.\\./(${floors.slice(floor + 1).join('|')})/`,
        message: `lib/${folder} stands below that folder: move what both need down (docs/design.md, "The house").`,
      }],
    }],
  },
})));

const nodeGlobals = Object.fromEntries(
  ['console', 'process', 'performance', 'require', 'module', '__dirname', 'Buffer', 'URL', 'fetch', 'setTimeout', 'clearTimeout', 'setInterval', 'clearInterval']
    .map((name) => [name, 'readonly']));

export default tseslint.config(
  { ignores: ['dist/', 'build*/', 'coverage/', '.gpu-check/', 'node_modules/'] },
  eslint.configs.recommended,
  tseslint.configs.strict,
  {
    files: ['**/*.ts'],
    languageOptions: {
      parserOptions: { project: ['tsconfig.json', 'lib/server/page/tsconfig.json', 'test/tsconfig.json', 'test/bench/tsconfig.json', 'examples/tsconfig.json'] },
    },
    rules: {
      '@typescript-eslint/await-thenable': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/only-throw-error': ['error', { allowThrowingUnknown: true }],
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      'no-restricted-syntax': ['error', ...style],
    },
  },
  {
    files: ['**/*.ts', '**/*.mjs', '**/*.cjs'],
    languageOptions: { globals: nodeGlobals },
    rules: {
      // Typed arrays are indexed everywhere, and an element that is there needs its `!`.
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/no-require-imports': ['error', { allowAsImport: true }],
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_', destructuredArrayIgnorePattern: '^_' }],
      '@typescript-eslint/no-dynamic-delete': 'off',
      '@typescript-eslint/no-empty-function': 'off',
      'eqeqeq': 'error',
      'max-lines': ['error', 700],
      'no-regex-spaces': 'off',
      'prefer-const': 'error',
    },
  },
  {
    files: ['**/*.ts', '**/*.mjs', '**/*.cjs'],
    ignores: longLines,
    // A text that is printed stays in one piece, so that it can be searched for.
    rules: { 'max-len': ['error', { code: 120, ignoreStrings: true, ignoreTemplateLiterals: true, ignoreRegExpLiterals: true }] },
  },
  ...oneWay,
  {
    files: ['lib/server/page/*.ts'],
    languageOptions: { globals: Object.fromEntries(['document', 'fetch', 'matchMedia', 'sessionStorage', 'clearTimeout', 'AbortSignal'].map((name) => [name, 'readonly'])) },
  },
  {
    // Programs that leave things undone on purpose.
    files: ['test/teardown/**/*.ts'],
    rules: { '@typescript-eslint/no-floating-promises': 'off', 'no-useless-assignment': 'off' },
  },
  { files: ['lib/**/*.ts'], ignores: ['lib/cli/**'], rules: { 'no-console': 'error' } },
  // package.json is outside of lib/, so an import cannot name it.
  { files: ['**/*.cjs', 'lib/base/package.ts'], rules: { '@typescript-eslint/no-require-imports': 'off' } },
);
