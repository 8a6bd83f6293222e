import test from 'ava';

import { byArrival, byTenantShare, type OrderedRequest, type RequestOrder } from 'virtual-kv';

const request = (arrival: number, urgency = 0, tenantTokens = 0): OrderedRequest =>
  ({
    arrival, urgency, tenantTokens, tenant: '', promptTokens: 1, generatedTokens: 0,
    cachedTokens: 0, adapter: undefined, submittedMs: 0, deadlineAtMs: Infinity, orderValue: undefined,
  });

const sorted = (requests: OrderedRequest[], order: RequestOrder): number[] =>
  requests.toSorted(order).map(({ arrival }) => arrival);

test('by arrival: the urgent first, then as they came', (t) => {
  t.deepEqual(sorted([request(3), request(1), request(4, 2), request(2, 1), request(5, 2)], byArrival()), [4, 5, 2, 1, 3]);
});

test('by tenant share: the urgent first, then the tenant that had least, then as they came', (t) => {
  const requests = [request(1, 0, 900), request(2, 0, 900), request(3, 0, 20), request(4, 1, 900), request(5, 0, 20)];
  t.deepEqual(sorted(requests, byTenantShare()), [4, 3, 5, 1, 2]);
});
