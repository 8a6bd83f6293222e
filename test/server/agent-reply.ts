// What a model says that is told of two tools, `weather` and `time`: it calls both at once, then one again, then
// answers.

import type { AgentConversation } from './script-engine.js';

const call = (name: string, given: object): string => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`;

export function agentReply({ messages, values }: AgentConversation): string {
  if (values['tools'] === undefined) return 'I have no tools.';
  const results = messages.filter(({ role }) => role === 'tool').map(({ content }) => content);
  if (results.length === 0) return `<think>\nI need both.\n</think>\n\nLet me see.\n${call('weather', { city: 'Köln' })}\n${call('time', { zone: 'CET' })}`;
  if (results.length === 2) return call('time', { zone: 'UTC' });
  return `<think>\nNow I know.\n</think>\n\nIt is ${results.join(', ')}. 🦊`;
}
