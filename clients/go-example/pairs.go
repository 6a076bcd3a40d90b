package main

import (
	"bytes"
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/shoal-example/keyvalue"
)

// pairs shows io.grpc.KeyValueService: four calls whose failures are status codes. What was answered is durable.
func pairs(ctx context.Context, connection *grpc.ClientConn) error {
	service := keyvalue.NewKeyValueServiceClient(connection)
	// Keys are bytes of any kind.
	key := []byte{0x00, 0xff, 'g', 'o'}
	if _, err := service.Delete(ctx, &keyvalue.DeleteRequest{Key: key}); err != nil {
		return fmt.Errorf("delete of what may be missing: %w", err)
	}
	_, err := service.Retrieve(ctx, &keyvalue.RetrieveRequest{Key: key})
	if err := expect("retrieve of nothing", err, codes.NotFound); err != nil {
		return err
	}
	_, err = service.Update(ctx, &keyvalue.UpdateRequest{Key: key, Value: []byte("x")})
	if err := expect("update of nothing", err, codes.NotFound); err != nil {
		return err
	}
	_, err = service.Create(ctx, &keyvalue.CreateRequest{Key: key, Value: []byte("one")})
	if err := expect("create", err, codes.OK); err != nil {
		return err
	}
	_, err = service.Create(ctx, &keyvalue.CreateRequest{Key: key, Value: []byte("two")})
	if err := expect("create again", err, codes.AlreadyExists); err != nil {
		return err
	}
	_, err = service.Update(ctx, &keyvalue.UpdateRequest{Key: key, Value: []byte("two")})
	if err := expect("update", err, codes.OK); err != nil {
		return err
	}
	found, err := service.Retrieve(ctx, &keyvalue.RetrieveRequest{Key: key})
	if err := expect("retrieve", err, codes.OK); err != nil {
		return err
	}
	if !bytes.Equal(found.Value, []byte("two")) {
		return fmt.Errorf("retrieve: %q", found.Value)
	}
	_, err = service.Delete(ctx, &keyvalue.DeleteRequest{Key: key})
	return expect("delete", err, codes.OK)
}

// expect compares a call's status.
func expect(what string, err error, code codes.Code) error {
	if status.Code(err) != code {
		return fmt.Errorf("%s: %v instead of %v", what, err, code)
	}
	fmt.Printf("%s: %v\n", what, code)
	return nil
}
